r"""Questions over documents that nobody prepared for: how often words, vectors, both or a re-ranker find the right one.

    python -m benchmarks.search_questions --squad DATA --out rows.jsonl [--rerank MODEL]
    python -m benchmarks.search_questions --squad DATA --write FOLDER  # and a re-ranker from it:
    bertree index build default FOLDER/passages.jsonl --out index
    bertree index mine index --questions FOLDER/train.jsonl --out mined.jsonl
    bertree index mine index --questions FOLDER/dev.jsonl --out mined-dev.jsonl
    bertree embeddings train default --data mined.jsonl --dev mined-dev.jsonl --loss cross --out reranker \
        max_length=320 dropout=0.1 epochs=4 batch=256 lr=2e-4

The test has 280 paragraphs of each of three parts (SQuAD 1.1's development articles; Wikipedia of 2019 and Reddit from
SQuADShifts), each with one of its questions, drawn at random; a question is asked over all 840 paragraphs. They come
from a third of the articles; Reddit has none, so its paragraphs are drawn one by one. All questions on the other
articles, and on the articles of SQuAD's training files, are for training: `--write` puts their paragraphs and questions
into FOLDER. A twentieth of them is the dev part.
DATA: a folder with the files as JSON, possibly compressed.
"""

import json
import lzma
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bertree
from benchmarks.common import Results, argument_parser
from bertree.search.evaluation import FIGURES, difference

PARTS = {
    "squad": "squad-v1.1-dev.json",
    "new_wiki": "squadshifts-new_wiki.json",
    "reddit": "squadshifts-reddit.json",
}
TRAINING = ("squad-v1.1-train-subset.json", "squad-v2.0-train-first10articles.json")
EACH = 280  # paragraphs of each part in the test
DEV = 20  # one of so many training articles is the dev part
SHARED = 8  # a training paragraph that shares so many consecutive words with the test is left out
Row = dict[str, Any]


def read_articles(folder: Path, name: str) -> list[list[Row]]:
    """Return the articles of a file, in an order drawn at random: paragraphs (`text`) with their `questions`."""
    path = folder / name if (folder / name).is_file() else folder / f"{name}.xz"
    data = json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())["data"]
    articles = []
    for article in data:
        rows = [
            {"text": one["context"], "questions": [qa["question"] for qa in one["qas"] if qa.get("answers")]}
            for one in article["paragraphs"]
        ]
        rows = [row for row in rows if row["questions"]]
        articles += [[row] for row in rows] if len(data) == 1 else [rows]
    random.Random(0).shuffle(articles)
    return articles


def test_documents(folder: Path) -> tuple[list[Row], list[list[Row]]]:
    """Return the paragraphs of the test, each with one question, and the articles that have none of them."""
    documents: list[Row] = []
    others: list[list[Row]] = []
    for part, name in PARTS.items():
        articles = read_articles(folder, name)
        third = EACH if len(articles) > 2 * EACH else len(articles) // 3
        draw = random.Random(1)
        drawn = draw.sample([row for article in articles[:third] for row in article], EACH)
        documents += [
            {"id": f"{part}-{n}", "text": row["text"], "part": part, "question": draw.choice(row["questions"])}
            for n, row in enumerate(drawn)
        ]
        others += articles[third:]
    return documents, others


def training_articles(folder: Path) -> list[list[Row]]:
    """Return the articles for training, without paragraphs that share words in a row with one of the test."""
    documents, articles = test_documents(folder)
    for name in TRAINING:
        articles += read_articles(folder, name)
    tested = {run for row in documents for run in word_runs(row["text"])}
    kept: dict[str, Row] = {}
    for article in articles:  # the two training files share paragraphs
        for row in article:
            questions = kept[row["text"]]["questions"] if row["text"] in kept else []
            row["questions"] = list(dict.fromkeys([*questions, *row["questions"]]))
            if not tested.intersection(word_runs(row["text"])):
                kept[row["text"]] = row
    return [rows for article in articles if (rows := [row for row in article if kept.get(row["text"]) is row])]


def word_runs(text: str) -> set[str]:
    """Return all runs of SHARED words of a text."""
    words = text.casefold().split()
    return {" ".join(words[at : at + SHARED]) for at in range(len(words) - SHARED + 1)}


def write_training(source: Path, folder: Path) -> None:
    """Write `passages.jsonl`, and the questions of the training and of the dev part: `train.jsonl` and `dev.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    passages: list[Row] = []
    asked: dict[str, list[Row]] = {"train": [], "dev": []}
    for number, article in enumerate(training_articles(source)):
        part = "dev" if number % DEV == 0 else "train"
        for row in article:
            name = f"p{len(passages)}"
            passages.append({"id": name, "text": row["text"]})
            asked[part] += [{"question": question, "document": name} for question in row["questions"]]
    for stem, rows in {"passages": passages, **asked}.items():
        (folder / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{folder / stem}.jsonl: {len(rows):,} rows")


def main() -> None:
    """Build an index and evaluate each mode, in all and by part."""
    parser = argument_parser(__doc__)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rerank")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if arguments.write:
        write_training(arguments.squad, arguments.write)
        return
    documents, _ = test_documents(arguments.squad)
    note = (
        "over_better: in the first place, minus the better of words and vectors on this part (95 %, paired bootstrap)."
    )
    topic = f"search-questions/{Path(arguments.model).name}"
    results = Results(topic, arguments.out, ["numpy"], note)
    model = bertree.load(arguments.model)
    rerank = bertree.load(arguments.rerank) if arguments.rerank else None
    with tempfile.TemporaryDirectory() as folder:
        records = [{key: row[key] for key in ("id", "text", "part")} for row in documents]
        asked = [{"question": row["question"], "document": row["id"]} for row in documents]
        begun = time.perf_counter()
        with bertree.Index.build(model, records, Path(folder) / "index") as index:
            built = time.perf_counter() - begun
            result = bertree.evaluate_search(index, asked, rerank=rerank, candidates=arguments.candidates)
            sizes = index.info["bytes"]
    parts = np.array([row["part"] for row in documents])
    scores = {one.mode: one for one in result.modes}
    for mode, one in scores.items():
        figures: Row = {"questions": len(documents), "build_seconds": round(built, 1)}
        figures |= {f"{name}_mb": sizes[name] / 1e6 for name in ("vectors", "words", "database")}
        for name in FIGURES:
            low, high = one.interval(name)
            key = name.replace("@", "_at_")
            figures |= {key: 100 * one.mean(name), f"{key}_low": 100 * low, f"{key}_high": 100 * high}
        for part in PARTS:
            here = parts == part
            better = max(("words", "vectors"), key=lambda other: scores[other].values["first"][here].mean())
            over = difference(one.values["first"][here], scores[better].values["first"][here])
            figures[f"{part}_first"] = 100 * float(one.values["first"][here].mean())
            figures[f"{part}_recall_at_5"] = 100 * float(one.values["recall@5"][here].mean())
            figures[f"{part}_over_better"] = 100 * over["mean"]
            figures[f"{part}_over_better_low"], figures[f"{part}_over_better_high"] = (
                100 * side for side in over["interval"]
            )
        results.add(mode if mode != "reranked" else f"hybrid, reranked by {Path(arguments.rerank).name}", **figures)
    results.print_table()


if __name__ == "__main__":
    main()
