"""Sentence-BERT's objectives, poolings and concatenations from one set of weights, in one table.

    python -m benchmarks.sbert MODEL --nli SNLI --nli MNLI --sts STS-B --test sts-test.csv --out rows.jsonl
    python -m benchmarks.sbert MODEL ... --only softmax cosine --out rows-1.jsonl      # side by side with others
    python -m benchmarks.sbert MODEL ... --only --merge rows-*.jsonl --table result.md

Every run starts from the same weights and is judged by Spearman's correlation of cosines and scores on STS-B, times
100: on dev, whose best evaluation is kept, and on test, which nothing was chosen by. `mean`, `cls` and `max` are the
weights before training, `glove` (with --glove FILE) mean word vectors. Trained: `softmax`, `triplet` and `ranking` on
NLI, `cosine` on STS-B's own training split, and `softmax then cosine`, `ranking then cosine`, as in the paper; then
poolings and what the classifier reads of two vectors.

A run is a JSON line in --out as soon as it is done; what is there already, of the same weights, data and settings, is
not run again.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import environment, table
from benchmarks.default import attempted
from benchmarks.standings import rows_in
from bertree.embeddings.evaluate import WordVectors
from bertree.embeddings.train import TrainingRows, TrainingSource, read_rows, vectors_job
from bertree.errors import BertreeWarning, suggest
from bertree.files.formats import Json
from bertree.finetuning.job import encode_job
from bertree.inference.load import Model, load, make_model
from bertree.model.pooling import PoolingConfig
from bertree.scale.world import World
from bertree.tasks import similarity_files as read_sentences
from bertree.tasks.metrics import spearman
from bertree.tasks.similarity_files import ColumnNames, SentenceExample
from bertree.text.tokenizer import Encoded, Tokenizer

UNTRAINED = ("mean", "cls", "max")
WORDS = ("glove", "glove, content words")
CONCATS = ("u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|,u*v")
Stage = tuple[str, tuple[str, ...]]  # a loss and its settings
RUNS: dict[str, tuple[Stage, ...]] = {
    "softmax": (("softmax", ()),),
    "cosine": (("cosine", ()),),
    "triplet": (("triplet", ()),),
    "ranking": (("ranking", ()),),
    "softmax then cosine": (("softmax", ()), ("cosine", ())),
    "ranking then cosine": (("ranking", ()), ("cosine", ())),
    **{
        f"{loss}, {pooling}": ((loss, (f"pooling={pooling}",)),)
        for loss in ("softmax", "cosine")
        for pooling in ("cls", "max")
    },
    **{f"softmax, ({concat})": (("softmax", (f"concat={concat}",)),) for concat in CONCATS},
}
Embed = Callable[[Sequence[str]], NDArray[np.float32]]
KEY = ("run", "seed", "weights", "settings", "train", "limit")


class Remembering(Tokenizer):
    """Every run reads the same texts; tokenizing them once is enough."""

    def __init__(self, other: Tokenizer) -> None:
        super().__init__(other.backend, other.config, other.files)
        self._known: dict[tuple[object, int | None], Encoded] = {}

    def encode_batch(
        self, inputs: Sequence[str | tuple[str, str]], max_length: int | None = None, cut: str = "right"
    ) -> list[Encoded]:
        """As ever."""
        assert cut == "right"
        new = [given for given in dict.fromkeys(inputs) if (given, max_length) not in self._known]
        for given, made in zip(new, super().encode_batch(new, max_length), strict=True):
            self._known[given, max_length] = made
        return [self._known[given, max_length] for given in inputs]


@dataclass
class Bench:
    """What all runs share."""

    options: argparse.Namespace
    given: dict[str, TrainingRows] = field(default_factory=dict)
    loaded: Model | None = None

    @property
    def model(self) -> Model:
        """The weights every run starts from; training works on a copy."""
        if self.loaded is None:
            self.loaded = load(self.options.model)
            self.loaded.tokenizer = Remembering(self.loaded.required_tokenizer)
        return self.loaded

    def data(self, loss: str) -> TrainingRows:
        """What a loss learns from: NLI, or STS-B; judged on the latter's dev split."""
        if loss not in self.given:
            sources = [self.options.sts] if loss == "cosine" else self.options.nli
            found = read_rows(TrainingSource(sources, self.dev), loss)
            limit = self.options.limit or None
            self.given[loss] = replace(found, train=[rows[:limit] for rows in found.train])
        return self.given[loss]

    @property
    def dev(self) -> Path:
        """The file of STS-B's dev split."""
        return read_sentences.find(self.options.sts)["dev"][0]

    def described(self, name: str, seed: int) -> Json:
        """What makes a run that run."""
        row: Json = {"run": name, "seed": seed, "weights": self.model.digest, "limit": self.options.limit}
        if name in RUNS:
            stages = RUNS[name]
            row["settings"] = [[loss, *settings, *self.options.set] for loss, settings in stages]
            row["train"] = [sum(map(len, self.data(loss).train)) for loss, _ in stages]
        return row

    def run(self, name: str, seed: int) -> Json:
        """Train, where there is something to train, and judge."""
        if name in WORDS:
            return self._glove(name)
        if name in UNTRAINED:
            start = load(self.options.model, device=_device(self.options.device))
            start.vector = PoolingConfig(name)
            return self._judged(start)
        model, found = self.model, dict[str, Json]()
        began = time.perf_counter()
        for loss, settings in RUNS[name]:
            given = [f"device={self.options.device}", f"seed={seed}", *self.options.set, *settings]
            with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(None):
                task_job = vectors_job(model, str(self.options.model), self.data(loss), given, [name])
                job = encode_job(task_job, Path(place) / "run", World.alone())
                Path(place, "run").mkdir()
                trained = job.tuner.run(Path(place) / "run", seed, False, [])
            if trained.signal is not None:
                raise SystemExit(128 + trained.signal)
            assert task_job.select_saved is not None
            model = make_model(task_job.select_saved(job, trained.network))
            found[loss] = {"step": trained.best_step, "examples": len(job.splits["train"].examples)}
        seconds = round(time.perf_counter() - began, 1)
        return self._judged(model) | {"stages": found, "seconds": seconds}

    def _judged(self, model: Model) -> Json:
        model.network.eval()
        return self._scores(model.embed)

    def _glove(self, name: str) -> Json:
        words = WordVectors.read(self.options.glove)
        return self._scores(lambda texts: words.embed(texts, content=name != "glove"))

    def _scores(self, embed: Embed) -> Json:
        found: Json = {}
        for name, path in (("dev", self.dev), ("test", self.options.test)):
            rows = read_sentences.read([path], ColumnNames())
            one, other = (embed([row.texts[side] for row in rows]) for side in (0, 1))
            found[name] = 100 * spearman(_golds(rows), cosines(one, other))
        return found


def _golds(rows: Sequence[SentenceExample]) -> list[float]:
    return [float(row.gold or 0.0) for row in rows]


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each row with its counterpart; 0 where one is nothing."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: NDArray[np.float64] = (a * b).sum(1) / np.where(lengths > 0, lengths, 1)
    return found


def _device(name: str) -> str:
    import torch

    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def key(row: Json) -> str:
    """Two rows of one key are the same run."""
    return json.dumps([row.get(name) for name in KEY])


def summary(rows: Sequence[Json]) -> str:
    """The table: a run a row, its mean and deviation over seeds, and what training has added to the mean's score."""
    done = list({(row["run"], row["seed"]): row for row in rows if "test" in row}.values())
    order = [*WORDS, *UNTRAINED, *RUNS]
    before = [row["test"] for row in done if row["run"] == "mean"]
    lines: list[list[object]] = []
    for name in [name for name in order if any(row["run"] == name for row in done)]:
        of_run = [row for row in done if row["run"] == name]
        gain = f"{statistics.mean(row['test'] for row in of_run) - before[0]:+.1f}" if before and name in RUNS else ""
        learned = " + ".join(f"{count:,}" for count in of_run[-1].get("train", ()))
        seconds = f"{statistics.mean(row['seconds'] for row in of_run):.0f}" if "seconds" in of_run[-1] else ""
        lines.append([_called(name), learned, _cell(of_run, "dev"), _cell(of_run, "test"), gain, seconds])
    head = ["vectors", "rows to learn from", "STS-B dev", "STS-B test", "over mean pooling", "seconds"]
    failed = [f"- failed: {row['run']}, seed {row['seed']}: {row['error']}" for row in rows if "error" in row]
    where = sorted({f"- {row['where']}" for row in done})
    return "\n".join(
        [table(head, lines), "", "Spearman's correlation of cosine and score, times 100.", *where, *failed, ""]
    )


def _called(name: str) -> str:
    return f"{name}, untrained" if name in UNTRAINED else name.replace("|", "\\|")


def _cell(rows: Sequence[Json], part: str) -> str:
    values = [row[part] for row in rows]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder, or: default")
    parser.add_argument("--nli", type=Path, action="append", default=[], help="SNLI, MultiNLI: folder or file")
    parser.add_argument("--sts", type=Path, required=True, help="STS-B: a folder with train and dev")
    parser.add_argument("--test", type=Path, required=True, help="its test split with scores")
    parser.add_argument("--glove", type=Path, help="word vectors: a word and its numbers a line, also .xz")
    parser.add_argument("--only", nargs="*", metavar="RUN", help=f"of these, which: {'; '.join((*UNTRAINED, *RUNS))}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="first so many rows of each file to learn from")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all that is trained")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("sbert.jsonl"), help="rows, appended as they are done")
    parser.add_argument("--merge", nargs="+", type=Path, default=[], help="rows made elsewhere")
    parser.add_argument("--table", type=Path, help="file for the table")
    options = parser.parse_args()
    known = [*UNTRAINED, *RUNS, *(WORDS if options.glove else ())]
    options.only = known if options.only is None else options.only
    if wrong := [name for name in options.only if name not in known]:
        parser.error(f"--only {wrong[0]}: {suggest(wrong[0], known)}")
    if not options.nli and any(loss != "cosine" for name in options.only for loss, _ in RUNS.get(name, ())):
        parser.error("--nli FOLDER is needed for what is trained on NLI")
    return options


def main() -> None:
    """Run what is not done yet, then print the table of all there is."""
    options = parsed()
    warnings.simplefilter("ignore", BertreeWarning)  # texts that are cut are cut for all
    bench = Bench(options)
    done = {key(row) for row in rows_in([*options.merge, options.out]) if "test" in row}
    for seed, name in product(range(options.seeds), options.only):
        if seed and name not in RUNS:
            continue  # nothing is drawn
        row = attempted(lambda _, name, seed: bench.described(name, seed), "sts-b", name, seed)
        if key(row) in done:
            continue
        if "error" not in row:
            row |= attempted(lambda _, name, seed: bench.run(name, seed), "sts-b", name, seed)
        row = {"run": name, "seed": seed} | row | {"where": environment()}
        print(json.dumps(row), flush=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    rows = rows_in([*options.merge, options.out])
    if not any("test" in row for row in rows):
        raise SystemExit("no run has come to its end, so there is no table")
    text = summary(rows)
    print(text, flush=True)
    if options.table:
        options.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
