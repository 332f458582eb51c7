"""Log-likelihoods of real GPT-2-type weights: bertree beside transformers, from the same Hugging Face folder.

    python -m benchmarks.real_gpt2 FOLDER                     # texts of the corpus in this repository
    python -m benchmarks.real_gpt2 FOLDER --file LINES --split

Every line is scored by itself: the sum of the log-probabilities of its tokens after the first. bertree scores all lines
in packed batches, transformers one at a time, so that no padding is involved. `--split`: the entries of the vocabulary
stand between spaces; otherwise the folder's tokenizer reads the line.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

from benchmarks.common import CORPUS, environment, sentences, table
from bertree.batch import Batch
from bertree.interop import folder
from bertree.interop.contents import Contents

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BATCH = 32


def main() -> None:
    """Read the folder with both, score the lines, print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path, help="one text a line")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--split", action="store_true", help="entries of the vocabulary stand between spaces")
    parser.add_argument("--each", action="store_true", help="print every line's log-likelihood")
    given = parser.parse_args()
    contents = folder.read(given.folder)
    contents.network.eval()
    lines = given.file.read_text(encoding="utf-8").splitlines() if given.file else sentences(CORPUS, given.texts)
    ids = [row for line in lines if len(row := read_line(contents, line, given.split)) > 1]
    print(environment())
    ours, theirs = score_packed(contents, ids), score_one_by_one(given.folder, ids)
    tokens = sum(len(row) - 1 for row in ids)
    rows = [
        ["bertree", f"{sum(ours):.3f}", f"{-sum(ours) / tokens:.5f}"],
        ["transformers", f"{sum(theirs):.3f}", f"{-sum(theirs) / tokens:.5f}"],
    ]
    print(table(["", "log-likelihood", "nats a token"], rows))
    worst = max(abs(a - b) / (len(row) - 1) for a, b, row in zip(ours, theirs, ids, strict=True))
    print(f"\n{len(ids)} lines, {tokens} predicted tokens; largest difference {worst:.1e} nats a token")
    for line, a, b in zip(lines, ours, theirs, strict=False) if given.each else ():
        print(f"{a:12.4f} {b:12.4f}  {line[:60]}")


def read_line(contents: Contents, line: str, split: bool) -> list[int]:
    """Return the ids of a line, at most as many as the model has positions."""
    tokenizer = contents.tokenizer
    assert tokenizer is not None, "the folder has no tokenizer"
    found = [tokenizer.backend.token_to_id(t) for t in line.split()] if split else tokenizer.encode_plain([line])[0].ids
    assert None not in found, f"{line}: an entry is not in the vocabulary"
    return [i for i in found if i is not None][: contents.architecture.max_positions]


def score_packed(contents: Contents, ids: list[list[int]]) -> list[float]:
    """Return the log-likelihood of each sequence, by bertree."""
    found: list[float] = []
    for first in range(0, len(ids), BATCH):
        rows = ids[first : first + BATCH]
        with torch.inference_mode():
            hidden = contents.network(Batch.pack(rows))
            scores = contents.network.mask_logits(hidden, torch.arange(len(hidden))).float().log_softmax(-1)
        for row, mine in zip(rows, scores.split([len(row) for row in rows]), strict=True):
            found.append(float(mine[:-1].gather(1, torch.tensor(row[1:])[:, None]).double().sum()))
    return found


def score_one_by_one(path: Path, ids: list[list[int]]) -> list[float]:
    """Return the log-likelihood of each sequence, by transformers."""
    model = transformers.GPT2LMHeadModel.from_pretrained(path).eval()
    found = []
    for row in ids:
        with torch.inference_mode():
            logits = model(torch.tensor([row])).logits[0, :-1].float()
            losses = F.cross_entropy(logits, torch.tensor(row[1:]), reduction="none")
        found.append(-float(losses.double().sum()))
    return found


if __name__ == "__main__":
    main()
