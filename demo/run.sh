#!/usr/bin/env bash
# The whole path on the data of this repository: what works today, step by step. `make demo` runs it.
# Every line that starts with $ below is a command you can run yourself with .venv/bin on your PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
out=demo-out
rm -rf "$out" && mkdir -p "$out"

step() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }

step "The family"
run bertree info

step "A trained model that comes along: small, general English, offline"
run bertree fill default "He opened the [MASK] and went out."

step "A tokenizer from your own text"
run bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out "$out/tokenizer"

step "The text as a token store"
run bertree prepare corpus/books.txt --tokenizer "$out/tokenizer" --out "$out/store"
run bertree store verify "$out/store"

step "What a model reads: two segments, a question about them, and masks over whole words"
run bertree store show "$out/store" --at 60 --format segment-pair+nsp --masking word --max-length 96

step "A tiny BERT, pretrained from scratch: about two minutes on two cores"
run bertree pretrain bert-base-tiny --store "$out/store" --out "$out/run"

step "What it learned"
run bertree fill "$out/run/model" "“I do not [MASK] what you mean,” said the captain."
run bertree fill "$out/run/model" "He looked at [MASK] with a smile."

step "Fine-tuned: which book is a paragraph from? A quarter of a minute"
run python demo/books.py corpus/books.txt "$out/books.csv"
run bertree finetune "$out/run/model" --task classification --data "$out/books.csv" --label book --out "$out/books" epochs=4
run bertree predict "$out/books/model" "The Tin Woodman and the Lion walked along the road of yellow brick."

step "Distilled: half of it learns the same task from the whole, and what that saves. Half a minute"
run bertree distill "$out/books/model" --task classification --data "$out/books.csv" --label book --student half \
    --out "$out/half" --compare 5 epochs=4

step "The run as a page: curves, samples through training, configuration"
run ls "$out/run"
echo "open $out/run/report.html in a browser"

step "A folder for bertree and back, byte for byte"
run bertree convert "$out/run/model" "$out/copy" --to bertree
run cmp "$out/run/model/model.safetensors" "$out/copy/model.safetensors"

step "Sentence vectors: what means the same lies near"
run bertree similar default "The ship went down in the storm." "A vessel sank in bad weather."
run bertree similar default "The ship went down in the storm." "She bought a loaf of bread."

step "The books as an index of passages: about a minute"
run bertree index build default corpus/books.txt --blocks --chunk 64 --out "$out/index"

step "A question, and the five passages that are nearest to it"
run bertree index query "$out/index" "Which jewel was stolen at the hotel, and who did it?" -k 5
printf '\nDone: everything is under %s. Next: bertree --help\n' "$out"
