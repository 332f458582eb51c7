"""Whole documents against their beginnings: the same model fine-tuned at several lengths with the same budget.

    python -m benchmarks.long_documents my-run/model --task imdb --data imdb --lengths 512 4096 --out study
    python -m benchmarks.long_documents my-run/model --passages books.txt --words 2500 --lengths 512 4096 --out study

The budget is the tokens that are read at the greatest length in --epochs; a shorter length reads more epochs of shorter
texts, the same number of tokens (--same epochs: as many epochs instead). --set gives settings of `bertree finetune`.

--passages makes a task of running text: a file of documents with blank lines between them is cut into passages of so
many words, and the document that each is from must be told. The last fifth of each document is the dev split;
documents with fewer than ten passages are left out.

OUT/rows.jsonl has a line for every fine-tuning that is done: those are not made again, and one that was stopped is
resumed. OUT/table.md is the table.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import bertree
from benchmarks.common import environment, table
from benchmarks.standings import rows_in
from bertree.files.formats import Json
from bertree.finetuning.evaluate import encode_split
from bertree.finetuning.job import find_splits, read_examples
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task

FEWEST = 10  # passages of a document


def make_passages(source: Path, words: int, out: Path) -> Path:
    """Write the passages of each document with its number as their label; return the folder."""
    rows: dict[str, list[Json]] = {"train": [], "dev": []}
    for number, document in enumerate(source.read_text(encoding="utf-8").split("\n\n")):
        found = document.split()
        passages = [" ".join(found[first : first + words]) for first in range(0, len(found) - words + 1, words)]
        if len(passages) < FEWEST:
            continue
        first_dev = len(passages) - max(1, len(passages) // 5)
        for place, passage in enumerate(passages):
            rows["train" if place < first_dev else "dev"].append({"text": passage, "label": f"document {number}"})
    if len({row["label"] for row in rows["train"]}) < 2:
        raise SystemExit(f"{source}: has no two documents of {FEWEST * words:,} words; give fewer --words")
    out.mkdir(parents=True, exist_ok=True)
    for split, lines in rows.items():
        (out / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return out


def tokens_read(model: bertree.Model, task: str, data: Path, lengths: Sequence[int]) -> dict[int, int]:
    """Return the tokens of an epoch at each length."""
    known = make_task(task)
    given = read_examples(known, find_splits(TaskFiles.of(data), known), held_out=0.1)
    found = {}
    for length in lengths:
        split, _ = encode_split(given.task, given.examples["train"], model, length)
        found[length] = sum(len(sequence.ids) for unit in split.units for sequence in unit.sequences)
    return found


def run(given: argparse.Namespace, length: int, epochs: float, seed: int) -> Json:
    """Return the row of one fine-tuning."""
    out = given.out / f"{given.task}-{length}-{seed}"
    began = time.perf_counter()
    settings = [f"max_length={length}", f"epochs={epochs:.4f}", f"seed={seed}", *given.set]
    found = bertree.finetune(
        given.model, task=given.task, data=given.data, out=out, overrides=settings, resume=out.exists()
    )
    if not found.complete:
        raise SystemExit(130)
    scores = found.metrics
    return {
        "task": given.task,
        "length": length,
        "seed": seed,
        "settings": settings,
        "metric": scores["metric"],
        "score": scores[scores["metric"]],
        "cut": scores["cut"],
        "examples": scores["examples"],
        "seconds": round(time.perf_counter() - began, 1),
        "where": environment(),
    }


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model that is fine-tuned")
    parser.add_argument("--task", default="classification", help="as in bertree finetune")
    parser.add_argument("--data", type=Path, help="folder or file of the task")
    parser.add_argument("--passages", type=Path, help="running text to make a task of")
    parser.add_argument("--words", type=int, default=2500, help="words of a passage")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 4096], help="tokens of a text, at most")
    parser.add_argument("--only", type=int, nargs="+", help="those of the lengths that are run here")
    parser.add_argument("--epochs", type=float, default=2.0, help="at the greatest length")
    parser.add_argument(
        "--same", choices=("tokens", "epochs"), default="tokens", help="what all lengths have in common"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the fine-tunings")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if (given.data is None) == (given.passages is None):
        parser.error("give --data or --passages")
    return given


def summary(rows: Sequence[Json]) -> str:
    """Return the table: mean over the seeds, at each length."""
    lines = []
    for task, length in sorted({(row["task"], row["length"]) for row in rows}):
        found = [row for row in rows if (row["task"], row["length"]) == (task, length)]
        scores = [100 * row["score"] for row in found]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        first = found[0]
        cut = first["cut"].get("dev", {}).get("examples", 0)
        share = 100 * cut / first["examples"]["dev"]
        cells = [f"{statistics.mean(scores):.1f}{spread}", f"{share:.0f} %", f"{first['epochs']:.2f}"]
        seconds = statistics.mean(row["seconds"] for row in found)
        lines.append([task, length, len(found), *cells, f"{first['tokens']:,.0f}", f"{seconds:.0f}"])
    metric = rows[0]["metric"]
    head = ["task", "tokens of a text", "seeds", f"{metric}, %", "texts cut", "epochs", "tokens read", "seconds"]
    return table(head, lines)


def main() -> None:
    """Run what is not done yet, then write the table."""
    given = parsed()
    if given.passages is not None:
        given.data = make_passages(given.passages, given.words, given.out / "passages")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.jsonl"
    done = {(row["task"], row["length"], row["seed"]) for row in rows_in([path])}
    tokens = tokens_read(bertree.load(given.model), given.task, given.data, given.lengths)
    budget = given.epochs * tokens[max(given.lengths)]
    for seed in range(given.seeds):
        for length in given.only or given.lengths:
            if (given.task, length, seed) in done:
                continue
            epochs = budget / tokens[length] if given.same == "tokens" else given.epochs
            row = run(given, length, epochs, seed) | {"epochs": epochs, "tokens": epochs * tokens[length]}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    rows = rows_in([path])
    text = f"{rows[-1]['where']}; {given.model}\n\n{summary(rows)}\n"
    (given.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
