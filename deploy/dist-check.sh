#!/usr/bin/env bash
# Install the wheel of dist/ into an empty environment, without the repository, and use it as a reader of the README does:
# the first minute, a tiny pretraining, a server with one request. `make dist-check` runs it; it takes some minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(ls "$root"/dist/bertree-*.whl)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1
step() { printf '== %s (%s s)\n' "$1" "$SECONDS"; }

step "an empty environment with $(basename "$wheel")"
"${PYTHON:-python3}" -m venv "$work/venv"
export PATH=$work/venv/bin:$PATH
pip install -q -c "$root/constraints.txt" "$(grep '^torch==' "$root/constraints.txt")" 2>"$work/pip.log"
pip install -q "$wheel" 2>>"$work/pip.log"
mkdir -p "$work/here/corpus"
cp "$root/corpus/books.txt" "$work/here/corpus"  # the reader's own text
sed -n '/^## The first minute/,/^## Train/s/^\$ //p' "$root/README.md" > "$work/first-minute.sh"
cd "$work/here"
python -c "import bertree; assert bertree.__file__.startswith('$work'), bertree.__file__; print('bertree', bertree.__version__)"

step "the first minute of the README"
bash -exo pipefail "$work/first-minute.sh"

step "a tiny pretraining"
head -n 4000 corpus/books.txt > text.txt
bertree tokenizer train text.txt --vocab-size 4000 --out tokenizer
bertree prepare text.txt --tokenizer tokenizer --out store
bertree pretrain bert-base-tiny --store store --out run phases.0.steps=20 phases.0.batch_tokens=2048
bertree fill run/model "The captain went down to the [MASK]."
bertree verify run

step "an error that says how to install the server, which is then true"
bertree serve default 2>serve.txt && exit 1
command=$(sed -n "s/.*: \(pip install 'bertree\[serve\]'\).*/\1/p" serve.txt)
bash -exc "$command -q" 2>>"$work/pip.log"

step "a server and one request"
bertree serve default --port 8765 >server.log 2>&1 & server=$!
for _ in $(seq 600); do curl -sf http://127.0.0.1:8765/ready >/dev/null && break; sleep 0.5; done
curl -sf http://127.0.0.1:8765/v1/embeddings -H 'Content-Type: application/json' -d '{"model": "default", "input": "A text."}' | head -c 120
echo
kill $server && wait $server

pip install -q packaging 2>>"$work/pip.log"
step "what is installed"
python "$root/deploy/licenses.py" --extras serve
step "done; seconds of the CPU for this shell and its commands:"
times
