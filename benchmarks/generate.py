"""Generation: bertree against transformers' `generate`, one run, same weights, same greedy tokens.

    python benchmarks/generate.py                                   # CPU, GPT-2 of 124M parameters, batch 1 and 32
    python benchmarks/generate.py --device cuda --dtype bfloat16
    python benchmarks/generate.py --layers 4 --width 256 --vocab-size 8000

Random weights of a fixed seed, made by transformers and read by bertree from its folder. Both generate the same number
of tokens from the same prompts, greedily or (--temperature, --top-k) by drawing; runs alternate. Greedy tokens must be
the same on both sides: where they are not, the two likeliest tokens must be equally likely to within rounding.
"""

import argparse
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import bertree
from benchmarks.common import environment, medians, table
from bertree.batch import Batch
from bertree.inference.load import Model

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab-size", type=int, default=50257)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated after each prompt")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.threads:
        torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as scratch:
        peer, model = make_models(given, Path(scratch))
        rows = [row for size in given.batch_sizes for row in compare(peer, model, size, given)]
    drawn = f"temperature {given.temperature:g}, top-k {given.top_k}" if given.temperature else "greedy"
    print(f"{environment('transformers')}\n")
    shape = f"GPT-2 of {given.layers} layers, width {given.width}, vocabulary {given.vocab_size:,}"
    texts = f"prompts of {given.prompt} tokens, {given.tokens} generated"
    print(f"{shape}; {given.dtype}; {texts}, {drawn}; medians of {given.repeats} alternating runs\n")
    head = ("batch", "transformers tokens/s", "bertree tokens/s", "times", "ms a step", "same greedy tokens")
    print(table(head, rows))


def make_models(given: argparse.Namespace, folder: Path) -> tuple[Any, Model]:
    """Make the same model on both sides."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=given.vocab_size,
        n_layer=given.layers,
        n_embd=given.width,
        n_head=max(1, given.width // 64),
        bos_token_id=None,
        eos_token_id=None,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    peer = GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, given.dtype)).to(given.device).eval()
    return peer, bertree.load(folder, device=given.device, precision=given.dtype)


def compare(peer: Any, model: Model, size: int, given: argparse.Namespace) -> list[tuple[object, ...]]:
    """Time both on one batch."""
    random = torch.Generator().manual_seed(size)
    prompts = torch.randint(0, given.vocab_size, (size, given.prompt), generator=random)
    padded = prompts.to(given.device)
    options: dict[str, Any] = {"do_sample": given.temperature > 0}
    if given.temperature:
        options |= {"temperature": given.temperature, "top_k": given.top_k}

    def theirs() -> torch.Tensor:
        with torch.inference_mode():
            found = peer.generate(
                padded,
                attention_mask=torch.ones_like(padded),
                max_new_tokens=given.tokens,
                min_new_tokens=given.tokens,
                pad_token_id=0,
                **options,
            )
        return found[:, given.prompt :]

    rows = prompts.tolist()

    def ours() -> list[list[int]]:
        made = model.generate(rows, tokens=given.tokens, temperature=given.temperature, top_k=given.top_k)
        return [one.ids for one in made]

    same = "" if given.temperature else check(model, rows, theirs().tolist(), ours())
    times = medians({"theirs": theirs, "ours": ours}, given.repeats)
    rate = {name: size * given.tokens / seconds for name, seconds in times.items()}
    step = 1000 * times["ours"] / given.tokens
    figures = (f"{rate['theirs']:,.1f}", f"{rate['ours']:,.1f}", f"{rate['ours'] / rate['theirs']:.2f}", f"{step:.2f}")
    return [(size, *figures, same)]


def check(model: Model, prompts: list[list[int]], theirs: list[list[int]], ours: list[list[int]]) -> str:
    """Compare greedy tokens; a difference must be one of rounding."""
    equal = 0
    for prompt, one, other in zip(prompts, theirs, ours, strict=True):
        if one == other:
            equal += 1
            continue
        place = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        batch = Batch.pack([prompt + one[:place]]).to(model.device)
        with torch.no_grad():
            logits = model.network.mask_logits(model.network(batch), batch.last)[0].float()
        gap = abs(float(logits[one[place]] - logits[other[place]]))
        near = 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.05
        assert gap < near * float(logits.abs().max()), f"the two models differ at token {place}: logits {gap} apart"
    return f"{equal} of {len(prompts)} texts"


if __name__ == "__main__":
    main()
