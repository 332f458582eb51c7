"""Questions over documents that nobody prepared for: how often words, vectors and both find the right document.

    python -m benchmarks.search_questions --squad DATA --out rows.jsonl [--rerank MODEL] [--part dev]

The test has 280 paragraphs of each of three parts (SQuAD 1.1's development articles; Wikipedia of 2019 and Reddit from
SQuADShifts), each with one of its questions, drawn at random; a question is asked over all 840 paragraphs. The weight
of words was chosen on the paragraphs that are left (`--part dev`), after a first look at several sums here. DATA: a
folder with the three files as JSON, possibly compressed.
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
from bertree.search.evaluation.figures import FIGURES, difference

PARTS = {
    "squad": "squad-v1.1-dev.json",
    "new_wiki": "squadshifts-new_wiki.json",
    "reddit": "squadshifts-reddit.json",
}
EACH = 280  # paragraphs of each part in the test
Row = dict[str, Any]


def paragraphs(folder: Path, name: str) -> list[tuple[str, str]]:
    """Return the paragraphs of a part with one question each, in an order drawn at random."""
    path = folder / name if (folder / name).is_file() else folder / f"{name}.xz"
    data = json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
    rows = [
        (one["context"], [question["question"] for question in one["qas"] if question.get("answers")])
        for article in data["data"]
        for one in article["paragraphs"]
    ]
    draw = random.Random(0)
    rows = [row for row in rows if row[1]]
    draw.shuffle(rows)
    return [(text, draw.choice(questions)) for text, questions in rows]


def main() -> None:
    """Build an index and evaluate each mode, in all and by part."""
    parser = argument_parser(__doc__)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rerank")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--part", choices=["test", "dev"], default="test")
    arguments = parser.parse_args()
    chosen = slice(EACH) if arguments.part == "test" else slice(EACH, None)
    documents: list[Row] = []
    for part, name in PARTS.items():
        documents += [
            {"id": f"{part}-{number}", "text": text, "part": part, "question": question}
            for number, (text, question) in enumerate(paragraphs(arguments.squad, name)[chosen])
        ]
    note = (
        "over_better: in the first place, minus the better of words and vectors on this part (95 %, paired bootstrap)."
    )
    topic = f"search-questions/{arguments.part}, {Path(arguments.model).name}"
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
