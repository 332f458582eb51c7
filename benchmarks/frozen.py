"""A head that `finetune` solves on a frozen encoder, and few-shot training, against scikit-learn on the same vectors.

    python -m benchmarks.frozen --model default MiniLM --data ag-news=agnews sst-2=glue/SST-2 classification=topics \\
        --train 2000 --test 1000 --seeds 5 --out frozen.jsonl

The peer is `LogisticRegression` on `model.embed`, at the best of C = 1, 10 and 100 on the scored examples themselves:
an advantage that bertree, which chooses on training examples, does not have. A task is scored on its test split if
that has labels, else on dev. With --topics FILE (in the format of SQuAD) questions are classified by their article.
"""

import argparse
import csv
import json
import lzma
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import bertree
from benchmarks.common import Results
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task

Row = tuple[str, str]  # text, label
PEER_C = (1, 10, 100)


def read_task(name: str, data: Path) -> tuple[list[Row], list[Row]]:
    """Return the training and the scored examples of a task."""
    task = make_task(name, None, None, None)
    splits = TaskFiles(data).splits(task)
    parts = {part: [(e.text, str(e.gold)) for e in task.read(paths) if e.gold] for part, paths in splits.items()}
    return parts["train"], parts.get("test") or parts["dev"]


def read_topics(file: Path) -> tuple[list[Row], list[Row]]:
    """Return questions with the titles of their articles, of 24 articles."""
    with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as content:
        articles = json.load(content)["data"][:24]
    rows = [(qa["question"].strip(), a["title"]) for a in articles for p in a["paragraphs"] for qa in p["qas"]]
    random.Random(0).shuffle(rows)
    return rows[: 2 * len(rows) // 3], rows[2 * len(rows) // 3 :]


def draw(rows: list[Row], seed: int, count: int = 0, per_class: int = 0) -> list[Row]:
    """Return some of the rows, in all or of each class."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    if not per_class:
        return shuffled[:count]
    classes = sorted({label for _, label in rows})
    return [row for name in classes for row in [row for row in shuffled if row[1] == name][:per_class]]


def accuracies(model: Any, train: list[Row], test: list[Row], **settings: Any) -> tuple[float, float, float]:
    """Return the accuracy of bertree and of the peer in percent, and the seconds that bertree took."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, rows in (("train", train), ("dev", test)):
            with (Path(folder) / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *rows])
        began = time.perf_counter()
        run = bertree.finetune(model, task="classification", data=folder, out=f"{folder}/run", **settings)
        seconds = time.perf_counter() - began
        vectors, scored = (model.embed([text for text, _ in rows]) for rows in (train, test))
        labels, gold = ([label for _, label in rows] for rows in (train, test))
        fits = [LogisticRegression(C=c, max_iter=5000).fit(vectors, labels) for c in PEER_C]
        return 100 * run.metrics["accuracy"], 100 * max(fit.score(scored, gold) for fit in fits), seconds


def main() -> None:
    """Measure every model on every task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["default"])
    parser.add_argument("--data", nargs="*", default=[], metavar="TASK=FOLDER")
    parser.add_argument("--topics", type=Path)
    parser.add_argument("--train", type=int, default=2000, help="examples for the frozen encoder; 0: only few-shot")
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5, help="of few-shot training with eight examples of a class")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = Results("frozen", options.out, ["numpy", "scikit-learn"])
    tasks = {name: read_task(name, Path(folder)) for name, folder in (pair.split("=") for pair in options.data)}
    if options.topics:
        tasks["topics"] = read_topics(options.topics)
    for folder in options.model:
        model = bertree.load(folder)
        for name, (train, test) in tasks.items():
            scored, drawn = draw(test, 0, options.test), draw(train, 0, options.train)
            few = [draw(train, seed, per_class=8) for seed in range(options.seeds)]
            for mode, parts in (("frozen", [drawn] if drawn else []), ("few_shot", few)):
                runs = [accuracies(model, part, scored, **{mode: True}) for part in parts]
                if runs:
                    ours, peer, seconds = (round(float(value), 2) for value in np.mean(runs, 0))
                    figures = {"accuracy_percent": ours, "peer_percent": peer, "seconds": seconds}
                    counts = {"runs": len(runs), "train": len(parts[0]), "test": len(scored)}
                    results.add(f"{model.name}/{name}/{mode}", **figures, **counts)


if __name__ == "__main__":
    main()
