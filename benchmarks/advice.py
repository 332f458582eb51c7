"""Rows behind `bertree advise`: what each way of training scores on how many examples, and whether the advice holds.

    python -m benchmarks.advice curves --data DATA --out benchmarks/results/advice.jsonl
    python -m benchmarks.advice judge --work WORK       # of a check whose parts were trained with --only
    python -m benchmarks.advice rules                   # write the table of rules into docs/advice.md
    python -m benchmarks.advice check --data DATA --work WORK --out benchmarks/results/advice.jsonl

DATA has the folders glue/SST-2 and sts/ (SentEval), and for the check agnews/, glue/CoLA and glue/STS-B.
`curves` measures tasks that the knowledge of advice/ quotes; `check` other tasks, which it must not quote.
"""

import json
import random
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertree
from benchmarks.common import ROOT, Results, argument_parser, real_weights, table
from bertree.advice.knowledge import knowledge
from bertree.tasks.files import TaskFiles
from bertree.tasks.metrics import Statistic, correlation_statistic, label_statistics, paired_difference
from bertree.tasks.registry import make_task

Row = dict[str, Any]  # text, label, and pair if there is one
MODELS = {"default": "default", "all-MiniLM-L6-v2": str(real_weights())}
FOLDERS = {"sst-2": "glue/SST-2", "ag-news": "agnews", "cola": "glue/CoLA", "sts-b": "glue/STS-B"}
EPOCHS = ((200, 10), (1000, 5))
SCORED = 250
WORDS = {"ag-news": 15}  # of a text: two busy cores
CHECKED = ("ag-news", "cola", "sts-b")
CANDIDATES = {
    "texts": [
        *((64, "default", way) for way in ("frozen", "few-shot", "finetune")),
        *(
            (256, "default", way)
            for way in ("bilstm", "frozen", "finetune", "few-shot", "distill-bilstm", "distill-half")
        ),
    ],
    "sts-b": [
        (64, "default", "vectors"),
        *((64, "default", way) for way in ("train-vectors", "finetune")),
        *((256, "default", way) for way in ("train-vectors", "finetune")),
    ],
}
# Limits, by kind of task: what is given to `bertree.advise`.
LIMITS: dict[str, dict[str, dict[str, Any]]] = {
    "texts": {
        "64 examples, 65 MB": {"examples": 64, "memory": "65MB"},
        "256 examples, 65 MB": {"examples": 256, "memory": "65MB"},
        "256 examples, 65 MB, 15 ms": {"examples": 256, "memory": "65MB", "latency": "15ms"},
    },
    "sts-b": {
        "64 examples, 65 MB": {"examples": 64, "memory": "65MB"},
        "256 examples, 65 MB": {"examples": 256, "memory": "65MB"},
        "256 examples, 65 MB, 1,000,000 pairs": {"examples": 256, "memory": "65MB", "pairs": 1_000_000},
    },
}
KIND = {"ag-news": "texts", "cola": "texts", "sts-b": "sts-b"}
WAYS = {"cross-encoder": "finetune"}  # of the advice, by the name that it has here
LENGTH = 60
CURVES = (
    ("sst-2", 64, "default", "frozen"),
    ("sst-2", 500, "default", "finetune"),
    ("sst-2", 64, "default", "few-shot"),
    ("sst-2", 500, "default", "frozen"),
    ("sst-2", 64, "default", "finetune"),
    ("STS12+13 to STS16", 0, "default", "vectors"),
    ("STS12+13 to STS16", 0, "all-MiniLM-L6-v2", "vectors"),
    ("STS12+13 to STS16", 500, "default", "finetune"),
    ("STS12+13 to STS16", 64, "default", "train-vectors"),
)


def read(data: Path, name: str) -> tuple[list[Row], list[Row]]:
    """Return the training and the scored rows of a task, shuffled."""
    if name == "STS12+13 to STS16":
        train, test = (
            [row for year in years for row in read_sts(data / f"sts/STS{year}-en-test")]
            for years in (("12", "13"), ("16",))
        )
        return shuffled(train), shuffled(test)
    folder = FOLDERS[name]
    task = make_task(name)
    splits = TaskFiles.of(data / folder).splits(task)
    parts = [splits["train"], splits["test"] if name == "ag-news" else splits["dev"]]
    words = WORDS.get(name, 1000)
    rows = [[row_of(example, words) for example in task.read(part) if example.gold is not None] for part in parts]
    return shuffled(rows[0]), shuffled(rows[1])


def row_of(example: Any, words: int) -> Row:
    """Return an example as a row, with the first words of its text."""
    row = {"text": " ".join(example.text.split()[:words]), "label": example.gold}
    return row | ({"pair": example.pair} if example.pair else {})


def read_sts(folder: Path) -> list[Row]:
    """Return the pairs of an STS folder in SentEval's layout that have a score."""
    rows = []
    for file in sorted(folder.glob("STS.input.*.txt")):
        pairs = file.read_text(encoding="utf-8").splitlines()
        scores = (folder / file.name.replace("input", "gs")).read_text().splitlines()
        for pair, score in zip(pairs, scores, strict=True):
            if score.strip():
                first, second = pair.split("\t")[:2]
                rows.append({"text": first, "pair": second, "label": float(score)})
    return rows


def shuffled(rows: list[Row]) -> list[Row]:
    """Return the rows in a fixed random order."""
    return random.Random(0).sample(rows, len(rows))


def train(way: str, model: str, rows: list[Row], out: Path) -> Callable[[list[Row]], list[Any]]:
    """Train as the commands of a way do; return a function that predicts."""
    numbers = isinstance(rows[0]["label"], float)
    columns: dict[str, Any] = {"text": "text", "label": "label"} | ({"pair": "pair"} if "pair" in rows[0] else {})
    settings: dict[str, Any] = {"task": "regression" if numbers else "classification", "data": rows, **columns}
    epochs = next((count for most, count in EPOCHS if len(rows) <= most), 3)
    teacher, target = out / "finetune" / "model", out / way
    shutil.rmtree(target, ignore_errors=True)  # of a check that was stopped
    if way.startswith("distill") and not teacher.is_dir():
        bertree.finetune(model, out=teacher.parent, epochs=epochs, **settings)
    if way == "vectors":
        loaded = bertree.load(model)
    elif way == "train-vectors":
        loaded = bertree.train_embeddings(model, data=rows, loss="cosine", out=target, **columns).model
    elif way == "bilstm":
        loaded = bertree.finetune("bilstm", out=target, tokenizer=model, **settings).model
    elif way.startswith("distill"):
        student = way.partition("-")[2]
        loaded = bertree.distill(str(teacher), student=student, out=target, seconds=0, **settings).model
    else:
        extra: dict[str, Any] = {"frozen": {"frozen": True}, "few-shot": {"few_shot": True}}.get(
            way, {"epochs": epochs}
        )
        loaded = bertree.finetune(model, out=target, **settings, **extra).model

    def predict(scored: list[Row]) -> list[Any]:
        if "vectors" in way:
            sides = [loaded.embed([row[side] for row in scored]) for side in ("text", "pair")]
            lengths = [np.linalg.norm(side, axis=1) for side in sides]
            return ((sides[0] * sides[1]).sum(1) / lengths[0] / lengths[1]).tolist()
        inputs = [(row["text"], row["pair"]) if "pair" in row else row["text"] for row in scored]
        return [line["predicted"] for line in loaded.predict(inputs)]

    return predict


def measure_curves(data: Path, results: Results) -> None:
    """Score ways on the tasks that the knowledge quotes."""
    for name, n, model, way in CURVES:
        rows, scored = read(data, name)
        scored = scored[:600]
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            predicted = train(way, MODELS[model], rows[:n] or rows[:1], Path(folder))(scored)
            figures: dict[str, Any] = {"task": name, "model": model, "way": way, "examples": n, "scored": len(scored)}
            score = value_of(statistic_of(name, [row["label"] for row in scored], predicted))
            seconds = round(time.process_time() - began)
            results.add(
                f"curves/{name}/{model}/{way}/{n}", score_percent=round(100 * score, 1), cpu_s=seconds, **figures
            )


def statistic_of(name: str, gold: Sequence[Any], predicted: Sequence[Any]) -> Statistic:
    """Return Spearman's correlation of scores, Matthews' of CoLA, else the accuracy."""
    if name.lower().startswith("sts"):
        return correlation_statistic("spearman", gold, predicted)
    if name != "cola":
        return label_statistics(["accuracy"], gold, predicted)["accuracy"]
    matthews = label_statistics(["matthews"], gold, predicted)["matthews"]  # 0 where all predictions are the same
    return matthews._replace(of_samples=lambda counts, cells: np.nan_to_num(matthews.of_samples(counts, cells)))


def value_of(statistic: Statistic) -> float:
    """Return the score on all examples."""
    ones = np.ones((1, len(statistic.rows_nk)))
    return float(statistic.of_samples(ones, statistic.rows_nk)[0])


def train_candidates(data: Path, work: Path, only: Sequence[str], examples: int, ways: Sequence[str]) -> None:
    """Train what may meet a limit of the check, and keep the predictions; what is there already is not repeated."""
    for name in only or CHECKED:
        rows, scored = read(data, name)
        for n, model, way in CANDIDATES[KIND[name]]:
            if (examples and n != examples) or (ways and way not in ways):
                continue
            file = work / f"{name}.{n}.{model}.{way}.json"
            if file.is_file():
                continue
            began = time.process_time()
            predicted = train(way, MODELS[model], rows[:n] or rows[:1], work / f"{name}-{n}-{model}")(scored[:SCORED])
            content = {"predicted": predicted, "gold": [row["label"] for row in scored[:SCORED]]}
            seconds = time.process_time() - began
            file.write_text(json.dumps(content | {"cpu_s": round(seconds)}))
            print(file.name, round(seconds), flush=True)


def judge(work: Path, results: Results) -> None:
    """Ask for advice under each limit, and compare what it takes with the best of all that meet the limit."""
    for name in CHECKED:
        scores: dict[tuple[int, str, str], Statistic] = {}
        for file in sorted(work.glob(f"{name}.*.json")):
            _, n, model, way = file.stem.split(".")
            content = json.loads(file.read_text())
            scores[int(n), model, way] = statistic = statistic_of(name, content["gold"], content["predicted"])
            score = 100 * value_of(statistic)
            figures: dict[str, Any] = {"task": name, "examples": int(n), "model": model, "way": way}
            results.add(f"candidate/{file.stem}", score_percent=round(score, 1), cpu_s=content["cpu_s"], **figures)
        for limit, asked in LIMITS[KIND[name]].items():
            advice = bertree.advise(task=name, length=LENGTH, **asked)
            others = [one for one, _ in advice.others if one.encoder.folder]
            meeting = [one for one in (*advice.choices, *others) if one.meets]
            trained = [(one.encoder.name, WAYS.get(one.way.name, one.way.name)) for one in meeting]
            missing = [key for key in trained if (64 if key[1] == "vectors" else asked["examples"], *key) not in scores]
            if missing or not trained:
                print(f"{name}, {limit}: not trained: {missing}" if trained else f"{name}, {limit}: nothing meets it")
                continue
            of = {key: scores[64 if key[1] == "vectors" else asked["examples"], *key] for key in trained}
            values = {key: value_of(one) for key, one in of.items()}
            best = max(values, key=lambda key: values[key])
            difference = paired_difference(of[best], of[trained[0]])
            low, high = (round(100 * side, 1) for side in difference.interval)
            results.add(
                f"check/{name}/{limit}",
                limits=limit,
                candidates=len(trained),
                advised=": ".join(trained[0]),
                advised_percent=round(100 * values[trained[0]], 1),
                best=": ".join(best),
                best_percent=round(100 * values[best], 1),
                difference=round(100 * difference.value, 1),
                low=low,
                high=high,
                verdict="worse" if high < 0 else "not worse",
            )


def with_rules(page: str) -> str:
    """Return docs/advice.md with the rules of the knowledge."""
    rows = [
        [f"**{rule.name}**: {rule.text}", rule.source, f"{rule.ours}. {rule.figures}"] for rule in knowledge().rules
    ]
    lines = table(["rule", "source", "ours"], rows)
    return re.sub(r"(?s)(?<=<!-- rules -->\n).*(?=<!-- end rules -->)", lambda _: lines + "\n", page)


def main() -> None:
    """Measure."""
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("curves", "rules", "check", "judge"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, help="of the check: folder for models and predictions")
    parser.add_argument("--only", nargs="*", default=[], help="of the check: train for these tasks, and do not judge")
    parser.add_argument("--examples", type=int, default=0, help="with --only: with so many alone")
    parser.add_argument("--ways", nargs="*", default=[], help="with --only: these ways alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = Results("advice", options.out)
    if options.what == "rules":
        page = ROOT / "docs" / "advice.md"
        page.write_text(with_rules(page.read_text(encoding="utf-8")), encoding="utf-8")
    elif options.what == "curves":
        measure_curves(options.data, results)
    else:
        options.work.mkdir(exist_ok=True, parents=True)
        if options.what == "check":
            train_candidates(options.data, options.work, options.only, options.examples, options.ways)
        if not options.only:
            judge(options.work, results)


if __name__ == "__main__":
    main()
