"""One table of what a small general model must do: sentence vectors, search, masks, fine-tuned tasks.

    python -m benchmarks.default_table --model today=default --model MiniLM=FOLDER --sts STS --squad dev-v1.1.json \\
        --held lambada_test.jsonl --held agnews/test.tsv --out rows.jsonl --table result.md
    python -m benchmarks.default_table --merge rows.jsonl --tasks default-rows.jsonl --table result.md

A model is a folder (also of sentence-transformers), or `default`. What is measured:

- sts: Spearman's correlation of cosines and scores on every set below --sts, all pairs of a set together;
- search: for every question of --squad, is its context the first, or among the first five, of all distinct contexts?
  A context is one text, cut at the model's longest input;
- masks: accuracy and perplexity at masked tokens of --held, 15 % (BERT's 80/10/10). Masks are drawn by seed for the
  tokens of a text, so models that share a tokenizer have the same ones; others predict other tokens, and their
  figures cannot be compared closely;
- apart: cosines of all pairs of sentences from different documents of --held, and of the pairs of the STS benchmark
  with a score of 4 or more.

--tasks adds the six fine-tuned tasks from rows of benchmarks/default.py. A part is a JSON line in --out as soon as it
is done; what is there already, of the same weights and files, is not measured again.
"""

import argparse
import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Figure, Results, environment
from benchmarks.default import FOLDERS, attempted
from benchmarks.standings import rows_in, summary
from bertree.config.names import resolve_model_path
from bertree.data.prepare import prepare
from bertree.data.stream import Stream
from bertree.embeddings import sts
from bertree.embeddings.correlation import measures
from bertree.embeddings.evaluate import evaluate_embeddings
from bertree.errors import BertreeWarning
from bertree.files.formats import Json, file_hash
from bertree.inference.embedding import Vectors, pair_similarities, similarity_matrix
from bertree.inference.load import Model, load
from bertree.objectives.pretraining import pretraining_objective
from bertree.tasks.batches import inference_autocast
from bertree.tasks.squad.official import read as read_squad
from bertree.text.corpus import Corpus
from bertree.text.sentence_splitter import split_sentences
from bertree.train.held_out import evaluate_held_out

BENCHMARK = "STS-B test"
SAME = 4.0  # score from which a pair of the STS benchmark is counted as a paraphrase
SENTENCES = 500  # from as many documents; all their pairs
WORDS = (6, 40)  # of such a sentence
MASKED_TOKENS = 262_144  # tokens that are read for `masks`
LENGTH, BATCH = 128, 16_384  # of a sequence, of a batch
KEY = ("part", "model", "weights", "files")


@dataclass
class Bench:
    """What is measured on, and the models."""

    options: argparse.Namespace
    _models: dict[str, Model] = field(default_factory=dict)

    def model(self, name: str) -> Model:
        """A model, loaded once; the one before it is let go."""
        if name not in self._models:
            self._models = {name: load(self.options.folders[name], device=self.options.device)}
        return self._models[name]

    def described(self, part: str, name: str, _: int = 0) -> Json:
        """What makes a row that row."""
        files = {"sts": [self.options.sts], "search": [self.options.squad], "masks": self.options.held}
        inputs = files.get(part, [self.options.sts, *self.options.held])
        hashes = [file_hash(path) for base in inputs for path in _files_of(base)]
        files_hash = hashlib.sha256("".join(hashes).encode()).hexdigest()
        return {"part": part, "model": name, "weights": self.model(name).digest, "files": files_hash}

    def measured(self, part: str, name: str, _: int = 0) -> Json:
        """The figures of one part."""
        began = time.perf_counter()
        parts: dict[str, Callable[[Model], Json]] = {
            "size": self._size,
            "sts": self._sts,
            "search": self._search,
            "masks": self._masks,
            "apart": self._apart,
        }
        figures = parts[part](self.model(name))
        return figures | {"seconds": round(time.perf_counter() - began, 1)}

    def _size(self, model: Model) -> Json:
        folder = resolve_model_path(self.options.folders[next(iter(self._models))])
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
        parameters = sum(p.numel() for p in model.network.parameters())
        return {"megabytes": size / 1e6, "parameters": parameters, "width": model.dimension, "longest": model.limit}

    def _sts(self, model: Model) -> Json:
        sets = evaluate_embeddings(model, data=self.options.sts).metrics["encoders"][0]["sets"]
        return {"sets": {name: figures["all"]["spearman"]["cosine"] for name, figures in sets.items()}}

    def _search(self, model: Model) -> Json:
        questions, contexts, right = self._questions
        scores = similarity_matrix(model.embed(questions), model.embed(contexts))
        mine = scores[np.arange(len(right)), right]
        # Ties are ranked before it, or a model with constant vectors would be perfect.
        ranks = (scores >= mine[:, None]).sum(1)
        limit = model.limit
        cut = float(np.mean([len(e.ids) > limit for e in model.required_tokenizer.encode(contexts)])) if limit else 0.0
        shares = {f"recall@{k}": 100 * float((ranks <= k).mean()) for k in (1, 5)}
        return shares | {"questions": len(questions), "contexts": len(contexts), "cut": cut}

    @cached_property
    def _questions(self) -> tuple[list[str], list[str], list[int]]:
        """Questions, distinct contexts, and which context each question belongs to."""
        examples = read_squad([self.options.squad], impossible=False)
        places: dict[str, int] = {}
        right = [places.setdefault(example.context, len(places)) for example in examples]
        return [example.question for example in examples], list(places), right

    def _masks(self, model: Model) -> Json:
        if "mask" not in model.network.heads:
            return {"accuracy": None, "perplexity": None}
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore", BertreeWarning)
            Path(place, "tokenizer").mkdir()
            model.required_tokenizer.save(Path(place, "tokenizer"))
            store = prepare(self.options.held, Path(place, "tokenizer"), Path(place, "store"), workers=1).store
            stream = Stream(
                store, format="full-sentences", masking="token", batch_tokens=BATCH, max_length=LENGTH, seed=0
            )
            device = model.device
            held_out = evaluate_held_out(
                model.network,
                pretraining_objective(mlm=1.0),
                stream,
                MASKED_TOKENS,
                lambda: inference_autocast(device),
            )
        figures = {"accuracy": 100 * held_out["accuracy"], "perplexity": held_out["perplexity"]}
        return figures | {"tokenizer": store.tokenizer_hash, "tokens": min(store.tokens, MASKED_TOKENS)}

    def _apart(self, model: Model) -> Json:
        unrelated = pair_similarities(model.embed(sentences_of(self.options.held)))
        (part,) = next(one for one in sts.find([self.options.sts]) if one.name == BENCHMARK).parts
        chosen = [number for number, score in enumerate(part.gold) if score >= SAME]
        sides: list[Vectors] = [model.embed([side[number] for number in chosen]) for side in (part.first, part.second)]
        same = measures(*sides)["cosine"]
        limit = float(np.quantile(unrelated, 0.95))
        return {
            "unrelated": {"mean": float(unrelated.mean()), "95 %": limit, "pairs": len(unrelated)},
            "paraphrases": {"mean": float(same.mean()), "5 %": float(np.quantile(same, 0.05)), "pairs": len(same)},
            "above": 100 * float((same > limit).mean()),
        }


def sentences_of(paths: Sequence[Path]) -> list[str]:
    """A sentence from each of some documents, evenly spread over the files."""
    sentences = []
    for path in paths:
        chosen = [sentence for text in Corpus([str(path)]).documents() if (sentence := _sentence(text))]
        wanted = SENTENCES // len(paths)
        sentences += [chosen[number * len(chosen) // wanted] for number in range(min(wanted, len(chosen)))]
    return sentences


def _sentence(document: str) -> str:
    """The sentence in the middle of those that are neither short nor long; none: empty."""
    sentences_of_length = [text for text in split_sentences(document) if WORDS[0] <= len(text.split()) <= WORDS[1]]
    return sentences_of_length[len(sentences_of_length) // 2] if sentences_of_length else ""


def _files_of(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]


def key(row: Json) -> str:
    """Two rows of one key are the same measurement."""
    return json.dumps([row.get(name) for name in KEY])


FIGURES = {  # of a model's row: its part, and where the figure is in it
    "megabytes": ("size", "megabytes"),
    "max_tokens": ("size", "longest"),
    "sts12_percent": ("sts", "sets", "STS12"),
    "sts13_percent": ("sts", "sets", "STS13"),
    "sts14_percent": ("sts", "sets", "STS14"),
    "sts15_percent": ("sts", "sets", "STS15"),
    "sts16_percent": ("sts", "sets", "STS16"),
    "stsb_test_percent": ("sts", "sets", BENCHMARK),
    "sick_test_percent": ("sts", "sets", "SICK test"),
    "squad_recall_at_1_percent": ("search", "recall@1"),
    "squad_recall_at_5_percent": ("search", "recall@5"),
    "squad_contexts_truncated": ("search", "cut"),
    "unrelated_cosine": ("apart", "unrelated", "mean"),
    "unrelated_cosine_95th": ("apart", "unrelated", "95 %"),
    "paraphrase_cosine": ("apart", "paraphrases", "mean"),
    "paraphrases_above_percent": ("apart", "above"),
    "masked_accuracy_percent": ("masks", "accuracy"),
    "masked_perplexity": ("masks", "perplexity"),
    "tokenizer": ("masks", "tokenizer"),
}


def figure(parts: dict[str, Json], path: Sequence[str]) -> Figure:
    """Return a figure of a model, or None if it was not measured."""
    value: Any = parts
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else round(value, 4)


def page(rows: Sequence[Json], tasks: Sequence[Json], record: Path | None) -> str:
    """Return the table: one line per model; then the runs that failed and the fine-tuned tasks."""
    models: dict[str, dict[str, Json]] = {}
    for row in rows:
        if "seconds" in row:
            models.setdefault(row["model"], {})[row["part"]] = row
    results = Results("default-table", record)
    for name, parts in models.items():
        results.add(name, **{key: figure(parts, path) for key, path in FIGURES.items()})
    failed = {(row["part"], row["model"]): row["error"] for row in rows if "error" in row}
    lines = [results.text(), ""]
    lines += [
        f"- failed: {part}, {name}: {why}" for (part, name), why in failed.items() if part not in models.get(name, {})
    ]
    return "\n".join([*lines, "Fine-tuned:", "", summary(tasks, list(FOLDERS), None)] if tasks else lines)


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repeated: Json = {"action": "append", "default": []}
    parser.add_argument("--model", **repeated, metavar="NAME=FOLDER", help="a model and how it is called; default")
    parser.add_argument("--sts", type=Path, help="folder of sets with gold scores: STS12-en-test, STSBenchmark, SICK")
    parser.add_argument("--squad", type=Path, help="questions on contexts, in SQuAD's form")
    parser.add_argument("--held", type=Path, **repeated, help="text no model was trained on; .txt, .jsonl, .tsv (text)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("default-table.jsonl"), help="rows, appended as they are done")
    parser.add_argument("--merge", nargs="+", type=Path, default=[], help="rows made elsewhere")
    parser.add_argument("--tasks", nargs="+", type=Path, default=[], help="rows of benchmarks/default.py")
    parser.add_argument("--table", type=Path, help="file for the table")
    parser.add_argument("--record", type=Path, help="append a row of results for each model")
    options = parser.parse_args()
    options.folders = dict(entry.partition("=")[::2] for entry in options.model)
    if not all(options.folders.values()):
        parser.error("--model needs NAME=FOLDER")
    needed = {"--sts": options.sts, "--squad": options.squad, "--held": options.held}
    if options.folders and (missing := [name for name, value in needed.items() if not value]):
        parser.error(f"{missing[0]} is needed to measure a model")
    return options


def main() -> None:
    """Measure what is not done yet, then print the table of all there is."""
    options = parsed()
    warnings.simplefilter("ignore", BertreeWarning)  # contexts that are cut are counted
    bench = Bench(options)
    done = {key(row) for row in rows_in([*options.merge, options.out]) if "seconds" in row}
    for name in options.folders:
        for part in ("size", "sts", "search", "apart", "masks"):
            row: Json = {"part": part, "model": name} | attempted(bench.described, part, name, 0)
            if key(row) in done:
                continue
            if "error" not in row:
                row |= attempted(bench.measured, part, name, 0)
            row["where"] = environment()
            print(json.dumps(row), flush=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    text = page(rows_in([*options.merge, options.out]), rows_in(options.tasks), options.record)
    print(text, flush=True)
    if options.table:
        options.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
