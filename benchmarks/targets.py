"""What is lost by keeping only a teacher's k likeliest tokens: probability, divergence, and the direction of learning.

    python -m benchmarks.targets --teacher DIR --student DIR --store HELD --tokens 20000

For masked tokens of a store: the share of the teacher's probability (at the temperature) that its k likeliest tokens
hold; the divergence of the student measured by them, as a share of the whole one; and the cosine of the two gradients
at the student's scores, which is what training feels.
"""

import argparse

import torch
import torch.nn.functional as F

from benchmarks.common import environment
from bertree.batch import PretrainingLabels
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.inference.load import load
from bertree.objectives.divergences import divergence, top_k_divergence, top_k_log_probabilities

KEPT = (1, 4, 8, 16, 32, 64, 128, 512)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--student", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--temperature", type=float, default=2.0)
    options = parser.parse_args()
    teacher, student = load(options.teacher), load(options.student)
    stream = Stream(
        Store.open(options.store),
        format="full-sentences",
        masking=Masking.parse("token"),
        batch_tokens=4096,
        max_length=min(teacher.max_length, student.max_length, 128),
        seed=0,
    )
    sums = {k: torch.zeros(3) for k in KEPT}
    whole, rows, read = 0.0, 0, 0
    for batch in stream.one_epoch():
        masked, _ = PretrainingLabels.of(batch).predicted
        with torch.no_grad():
            its, mine = (model.network.mask_logits(model.network(batch), masked) for model in (teacher, student))
        mine.requires_grad_()
        full = divergence(mine, its, options.temperature)
        (slope,) = torch.autograd.grad(full.sum(), mine)
        whole, rows, read = whole + float(full.detach().sum()), rows + len(its), read + batch.ids.numel()
        for k in KEPT:
            kept, ids = top_k_log_probabilities(its, k, options.temperature)
            coarse = top_k_divergence(mine, kept.half(), ids, options.temperature)
            (other,) = torch.autograd.grad(coarse.sum(), mine)
            same = F.cosine_similarity(slope, other, -1).sum()
            sums[k] += torch.tensor([float(kept.exp().sum()), float(coarse.detach().sum()), float(same)])
        if read >= options.tokens:
            break
    print(f"{rows:,} masked tokens, temperature {options.temperature:g}; {environment()}\n")
    print("| k | bytes a masked token | probability kept | divergence seen | cosine of the gradients |")
    print("| --- | --- | --- | --- | --- |")
    for k, (kept_, coarse_, same_) in sums.items():
        print(f"| {k} | {4 * k} | {kept_ / rows:.1%} | {coarse_ / whole:.1%} | {same_ / rows:.3f} |")


if __name__ == "__main__":
    main()
