"""Generation: bertree against transformers' `generate`, one run, same weights, same greedy tokens.

    python -m benchmarks.generate                                   # CPU, GPT-2 of 124M parameters, batch 1 and 32
    python -m benchmarks.generate --device cuda --dtype bfloat16
    python -m benchmarks.generate --layers 4 --width 256 --vocab-size 8000

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
from benchmarks.common import Results, argument_parser, medians
from bertree.batch import Batch
from bertree.inference.load import Model

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argument_parser(__doc__)
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
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    drawn = f"temperature {options.temperature:g}, top-k {options.top_k}" if options.temperature else "greedy"
    shape = f"GPT-2 of {options.layers} layers, width {options.width}, vocabulary {options.vocab_size:,}"
    texts = f"prompts of {options.prompt} tokens, {options.tokens} generated"
    note = f"{shape}, random weights; {options.dtype}; {texts}, {drawn}; medians of {options.repeats} alternating runs."
    results = Results(f"generate/{options.device}", options.out, ["transformers"], note)
    with tempfile.TemporaryDirectory() as scratch:
        peer, model = make_models(options, Path(scratch))
        for size in options.batch_sizes:
            compare(peer, model, size, options, results)
    results.print_table()


def make_models(options: argparse.Namespace, folder: Path) -> tuple[Any, Model]:
    """Make the same model on both sides."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=options.vocab_size,
        n_layer=options.layers,
        n_embd=options.width,
        n_head=max(1, options.width // 64),
        bos_token_id=None,
        eos_token_id=None,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    peer = GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, options.dtype)).to(options.device).eval()
    return peer, bertree.load(folder, device=options.device, precision=options.dtype)


def compare(peer: Any, model: Model, size: int, options: argparse.Namespace, results: Results) -> None:
    """Time both on one batch."""
    random = torch.Generator().manual_seed(size)
    prompts = torch.randint(0, options.vocab_size, (size, options.prompt), generator=random)
    padded = prompts.to(options.device)
    sampling: dict[str, Any] = {"do_sample": options.temperature > 0}
    if options.temperature:
        sampling |= {"temperature": options.temperature, "top_k": options.top_k}

    def theirs() -> torch.Tensor:
        with torch.inference_mode():
            tokens = peer.generate(
                padded,
                attention_mask=torch.ones_like(padded),
                max_new_tokens=options.tokens,
                min_new_tokens=options.tokens,
                pad_token_id=0,
                **sampling,
            )
        return tokens[:, options.prompt :]

    rows = prompts.tolist()

    def ours() -> list[list[int]]:
        texts = model.generate(rows, tokens=options.tokens, temperature=options.temperature, top_k=options.top_k)
        return [text.ids for text in texts]

    same = "" if options.temperature else check(model, rows, theirs().tolist(), ours())
    times = medians({"theirs": theirs, "ours": ours}, options.repeats)
    rate = {name: size * options.tokens / seconds for name, seconds in times.items()}
    step = 1000 * times["ours"] / options.tokens
    results.add(
        f"batch {size}",
        transformers_tokens_per_second=round(rate["theirs"], 1),
        tokens_per_second=round(rate["ours"], 1),
        times_transformers=round(rate["ours"] / rate["theirs"], 2),
        step_ms=round(step, 2),
        same_greedy_tokens=same or None,
    )


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
