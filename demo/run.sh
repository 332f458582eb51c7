#!/usr/bin/env bash
# What bertree does, step by step, on the data of this repository: first the bundled model, then training.
# `make demo` runs it. Every line that starts with $ below is a command you can run yourself with .venv/bin on your PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
out=demo-out
rm -rf "$out" && mkdir -p "$out"

step() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }

step "The bundled model fills a mask: small, general English, offline"
run bertree fill default "He opened the [MASK] and went out."

step "It compares sentences by meaning"
run bertree similar default "The ship went down in the storm." "A vessel sank in bad weather."
run bertree similar default "The ship went down in the storm." "She bought a loaf of bread."

step "It searches a book: an index of The Adventures of Sherlock Holmes, in about 40 seconds"
head -n 2418 corpus/books.txt > "$out/holmes.txt"
run bertree index build default "$out/holmes.txt" --blocks --chunk 64 --out "$out/index"
run bertree index query "$out/index" "Which jewel was stolen at the hotel, and who did it?" -k 3

step "The family: every preset with its parameters"
run bertree info

step "Train a tokenizer on your own text"
run bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out "$out/tokenizer"

step "Turn the text into a token store"
run bertree prepare corpus/books.txt --tokenizer "$out/tokenizer" --out "$out/store"
run bertree store verify "$out/store"

step "One example as the model reads it: two segments, next sentence or not, whole words masked"
run bertree store show "$out/store" --at 60 --format segment-pair+nsp --masking word --max-length 96

step "Pretrain a tiny BERT from scratch: about two minutes on two cores"
run bertree pretrain bert-base-tiny --store "$out/store" --out "$out/run"

step "What it has learned"
run bertree fill "$out/run/model" "“I do not [MASK] what you mean,” said the captain."
run bertree fill "$out/run/model" "He looked at [MASK] with a smile."

step "Fine-tune it: which book is a paragraph from? About 15 seconds"
run python demo/books.py corpus/books.txt "$out/books.csv"
run bertree finetune "$out/run/model" --task classification --data "$out/books.csv" --label book --out "$out/books" epochs=4
run bertree predict "$out/books/model" "The Tin Woodman and the Lion walked along the road of yellow brick."

step "Distill it: half of the layers learn the task from the full model, and both are compared. About 30 seconds"
run bertree distill "$out/books/model" --task classification --data "$out/books.csv" --label book --student half \
    --out "$out/half" --seconds 5 epochs=4

step "The report of a run: curves, samples during training, settings"
run ls "$out/run"
echo "open $out/run/report.html in a browser"

step "Convert a model folder: the weights stay the same, byte for byte"
run bertree convert "$out/run/model" "$out/copy" --to bertree
run cmp "$out/run/model/model.safetensors" "$out/copy/model.safetensors"

printf '\nDone: everything is under %s. Next: bertree --help\n' "$out"
