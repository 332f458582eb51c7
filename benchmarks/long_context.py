"""How much a memory is worth: a Transformer-XL and a vanilla model of the same size on the same held-out text.

Train both for the same time on a token store of long texts, for example on one H200

    bertree pretrain transformer-xl-h200-10min --store STORE --out xl phases.0.max_length=128 model.memory=128 ...
    bertree pretrain transformer-xl-h200-10min --store STORE --out vanilla phases.0.max_length=128 model.memory=0 \\
        model.positions=learned model.max_positions=128 data.format=lanes ...
    python -m benchmarks.long_context xl/model vanilla/model --text held-out.txt --out long_context.md

It prints the held-out perplexity of both, the vanilla model's with windows that overlap by half too, the loss of the
same tokens by the length of the context before them, and the relative effective context length (Dai et al. 2019,
appendix C): the longest context from which a model still gains one percent over the best model with a shorter one, on
the tenth of the tokens that are hardest with the shorter one, and on all.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import environment, table
from bertree import Model, load
from bertree.inference.causal.scoring import score, score_segments

CONTEXTS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
BLOCK = 16  # tokens predicted after each context
GAIN = 0.01
Losses = NDArray[np.float64]


def blocks(model: Model, texts: list[str], count: int) -> list[list[int]]:
    """Cut texts into pieces of the longest context and a block to predict."""
    size = max(CONTEXTS) + BLOCK
    found: list[list[int]] = []
    for encoding in model.required_tokenizer.encode_plain(texts):
        ids = list(encoding.ids)
        found += [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    step = max(1, len(found) // count)
    return found[::step][:count]


def losses_by_context(model: Model, pieces: list[list[int]], limit: int) -> dict[int, Losses]:
    """Return the losses of the blocks' tokens for each length of the context; `limit`: tokens of a segment."""
    found = {}
    memory = int(model.architecture.axes().get("memory", 0))
    for context in CONTEXTS:
        if memory:
            cut = [piece[-context - BLOCK :] for piece in pieces]
            losses, _ = score_segments(model, cut, (), memory, limit, lambda count: None)
            by_piece = _in_order(losses, len(cut), context + BLOCK - 1, limit)
            found[context] = by_piece[:, -BLOCK:].flatten()
        else:
            cut = [piece[-min(context + BLOCK, limit) :] for piece in pieces]
            scored = score(model, cut, [len(piece) - BLOCK for piece in cut])
            found[context] = np.concatenate([one.losses for one in scored])
    return found


def _in_order(losses: Losses, pieces: int, tokens: int, segment: int, lanes: int = 32) -> Losses:
    """Sort the losses of segments, which are read lane by lane, into those of each piece (pieces x tokens)."""
    rows, at = np.empty((pieces, tokens)), 0
    for first in range(0, pieces, lanes):
        group = min(lanes, pieces - first)
        for begin in range(0, tokens, segment):
            size = min(segment, tokens - begin)
            rows[first : first + group, begin : begin + size] = losses[at : at + group * size].reshape(group, size)
            at += group * size
    assert at == losses.size
    return rows


def effective_context(models: list[dict[int, Losses]], share: float) -> list[int]:
    """Return the relative effective context length of each model."""
    found = [CONTEXTS[0]] * len(models)
    for shorter, longer in pairwise(CONTEXTS):
        best = np.min([one[shorter] for one in models], 0)
        hard = np.argsort(-best)[: max(1, round(share * best.size))]
        base = best[hard].mean()
        for number, one in enumerate(models):
            if (base - np.minimum(best, one[longer])[hard].mean()) / base > GAIN:
                found[number] = longer
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xl", type=Path, help="model with a memory")
    parser.add_argument("vanilla", type=Path, help="model without one")
    parser.add_argument("--text", type=Path, required=True, help="held-out text; an empty line ends a document")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--blocks", type=int, default=400, help="pieces of text for the table of contexts")
    parser.add_argument("--out", type=Path, help="write the tables there too")
    options = parser.parse_args()
    texts = [text for text in options.text.read_text(encoding="utf-8").split("\n\n") if text.strip()]
    models = {name: load(getattr(options, name), device=options.device) for name in ("xl", "vanilla")}
    segment = models["vanilla"].max_length
    memory = int(models["xl"].architecture.axes()["memory"])
    readings = [
        ("xl", f"segments of {segment}, memory {memory}", {"context": segment, "memory": memory}),
        ("xl", f"segments of {segment}, memory {4 * memory}", {"context": segment, "memory": 4 * memory}),
        ("vanilla", f"windows of {segment} side by side", {"context": segment, "stride": segment - 1}),
        ("vanilla", f"windows of {segment}, half new", {"context": segment, "stride": segment // 2}),
    ]
    rows: list[list[object]] = []
    for name, label, settings in readings:
        found = models[name].perplexity(texts, **settings)  # type: ignore[arg-type]
        bits, speed = f"{found.bits_per_character:.4f}", f"{found.speed:,.0f}"
        rows.append([name, label, f"{found.perplexity:.2f}", bits, f"{found.context_mean:.0f}", speed])
    head = ["model", "read in", "perplexity per token", "bits per character", "mean context", "tokens/s"]
    pieces = blocks(models["xl"], texts, options.blocks)
    curves = [losses_by_context(model, pieces, segment) for model in models.values()]
    by_context = [[context, *(f"{curve[context].mean():.4f}" for curve in curves)] for context in CONTEXTS]
    lengths = [
        [f"hardest {share:.0%}" if share < 1 else "all", *effective_context(curves, share)] for share in (0.1, 1)
    ]
    lines = [
        f"{environment()}; {len(texts)} texts",
        table(head, rows),
        f"Loss of {len(pieces) * BLOCK:,} tokens by context:",
        table(["context", *models], by_context),
        "Relative effective context length:",
        table(["tokens", *models], lengths),
    ]
    print("\n\n".join(lines))
    if options.out:
        options.out.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
