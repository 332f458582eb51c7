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

step "A tokenizer from your own text"
run bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out "$out/tokenizer"

step "The text as a token store"
run bertree prepare corpus/books.txt --tokenizer "$out/tokenizer" --out "$out/store"
run bertree store verify "$out/store"

step "What a model reads: two segments, a question about them, and masks over whole words"
run bertree store show "$out/store" --at 60 --format segment-pair+nsp --masking word --max-length 96

step "A model that fills masks (fresh weights: it has learned nothing yet)"
run bertree fill bert-tiny "The captain went down to the [MASK]." --tokenizer "$out/tokenizer"

step "Hand it to Hugging Face's tools and back"
cat > "$out/save.py" <<'PYTHON'
import bertree

model = bertree.load("bert-tiny", tokenizer="demo-out/tokenizer")
model.save("demo-out/model")
print([tuple(h.shape) for h in model.hidden(["The captain went down.", "Why?"])])
PYTHON
run python "$out/save.py"
run bertree convert "$out/model" "$out/for-transformers" --to huggingface
run bertree convert "$out/for-transformers" "$out/back" --to bertree
run cmp "$out/model/model.safetensors" "$out/back/model.safetensors"
printf '\nDone: everything is under %s. Next: bertree --help\n' "$out"
