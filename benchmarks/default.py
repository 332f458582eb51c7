"""Fine-tune the bundled model on six GLUE tasks, next to an untrained one and to other folders.

    python -m benchmarks.default --data GLUE --qnli-split --seeds 3 --out rows.jsonl
    python -m benchmarks.default --data GLUE --models --model teacher=DIR --model student=DIR --out rows.jsonl
    python -m benchmarks.default --models --merge rows-*.jsonl --table result.md

`default` is the bundled model (or --default DIR); `fresh` is its architecture with random weights, drawn anew for each
seed. All are trained with the same settings (epochs=3, the learning rate by the width), unless --set says otherwise:
for all (--set epochs=5) or for one (--set fresh:epochs=10). The best evaluation on the dev split counts.

Every run is a JSON line in --out as soon as it is done. A run with the same weights and settings is not repeated, so
an interrupted process continues; --merge reads rows from other machines. A run that fails is a line with the reason.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import torch

from benchmarks.common import environment
from benchmarks.standings import key, rows_in, summary
from bertree.config.names import resolve_model_path
from bertree.errors import UserError
from bertree.files.formats import Json, file_hash
from bertree.finetuning import config as configs
from bertree.finetuning.evaluate import EncodedSplit, evaluate_split
from bertree.finetuning.tuner import FineTuning, InitialModel, degenerate_reason
from bertree.inference.load import Model, load, random_model
from bertree.interop.folder import read_architecture
from bertree.tasks.columns import TextExample
from bertree.tasks.glue import glue_task
from bertree.tasks.task import Unit
from bertree.tasks.text import TextTask
from bertree.text.identity import tokenizer_hash
from bertree.train.device_setup import DeviceSetup, set_deterministic

FOLDERS = {"sst-2": "SST-2", "mrpc": "MRPC", "rte": "RTE", "sts-b": "STS-B", "cola": "CoLA", "qnli": "QNLI"}
OWN = ("default", "fresh")
SHARE = 0.8  # of QNLI's dev split that is learned from where it has no training file


@dataclass(frozen=True)
class Data:
    """A task with its examples."""

    task: TextTask
    train: Sequence[TextExample]
    dev: Sequence[TextExample]
    note: str = ""


def read(name: str, root: Path, limit: int, split: bool) -> Data:
    """The examples of a task under the root of GLUE; QNLI's dev split in two parts where `split` says so."""
    folder = next((f for f in (root / FOLDERS[name], root / "glue" / FOLDERS[name]) if f.is_dir()), None)
    if folder is None:
        raise UserError(f"{root / FOLDERS[name]}: no such folder")
    task, note = glue_task(name), ""
    paths = task.splits(folder)
    parts = [part for part in ("train", "dev") if part in paths]
    examples = {part: [e for e in task.read(paths[part]) if e.gold is not None] for part in parts}
    if "train" not in examples and not (split and name == "qnli"):
        raise UserError(f"{folder}: has no training file" + ("; give --qnli-split" if name == "qnli" else ""))
    if "train" not in examples:
        dev_examples = examples["dev"]
        learned = [_draw(example.text) < SHARE for example in dev_examples]  # by its question: those stay together
        examples = {"train": [e for e, is_in in zip(dev_examples, learned, strict=True) if is_in]}
        examples["dev"] = [e for e, is_in in zip(dev_examples, learned, strict=True) if not is_in]
        note = f"its dev file, {SHARE:.0%} to learn from and the rest to measure on"
    return Data(task, examples["train"][: limit or None], examples["dev"], note)


def _draw(text: str) -> float:
    """A number from 0 to 1 that is the text's own."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64


@dataclass
class Bench:
    """What all runs share."""

    options: argparse.Namespace
    data: dict[str, Data | str] = field(default_factory=dict)  # or why there is none
    models: dict[str, Model] = field(default_factory=dict)
    units: dict[tuple[str, str, int, str], list[Unit]] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)

    def examples(self, name: str) -> Data:
        """Of a task, read once."""
        if name not in self.data:
            try:
                self.data[name] = read(name, self.options.data, self.options.limit, self.options.qnli_split)
            except UserError as error:
                self.data[name] = str(error)
        scores = self.data[name]
        if isinstance(scores, str):
            raise UserError(scores)
        return scores

    def folder(self, model: str) -> Path:
        """Where a model's weights come from; for `fresh`, where its architecture does."""
        return resolve_model_path(self.options.folders.get(model, self.options.default))

    def identity(self, model: str) -> str:
        """What tells these weights from others of the same name."""
        if model not in self.identities:
            if model == "fresh":
                drawn = hashlib.sha256(repr(read_architecture(self.folder(model))).encode()).hexdigest()
                self.identities[model] = f"drawn for {drawn[:12]}"
            else:
                weights = sorted(self.folder(model).glob("*.safetensors"))
                self.identities[model] = "-".join(file_hash(path)[:12] for path in weights)
        return self.identities[model]

    def described(self, task: str, model: str, seed: int) -> Json:
        """What makes a run that run, before it is run."""
        row = {"task": task, "model": model, "seed": seed, "weights": self.identity(model)}
        return row | {"settings": self.settings(model), "train": len(self.examples(task).train)}

    def settings(self, model: str) -> list[str]:
        """What --set says for a model."""
        settings = [entry.rpartition(":") for entry in self.options.set]
        return [value for name, _, value in settings if name in ("", model)]

    def run(self, task: str, model: str, seed: int) -> Json:
        """One row."""
        data = self.examples(task)
        began = time.perf_counter()
        scores = self._tuned(data, model, seed)
        scores["seconds"] = round(time.perf_counter() - began, 1)
        return scores | {"dev": len(data.dev)} | ({"note": data.note} if data.note else {})

    def _tuned(self, data: Data, name: str, seed: int) -> Json:
        folder = str(self.folder(name))
        if folder not in self.models:
            self.models[folder] = load(folder)
        start = self.models[folder]
        network = random_model(start.architecture, {}, seed).network if name == "fresh" else start.network
        config = configs.load([f"device={self.options.device}", *self.settings(name)], data.task)
        longest = start.sequence_length(config.train.max_length, data.task.max_length)
        config = replace(
            config,
            name=data.task.name,
            note=name,
            train=replace(config.train, max_length=longest),
            optim=replace(config.optim, lr=configs.learning_rate(config, start.architecture)),
        )
        set_deterministic(config.run.deterministic)
        train, dev = (self._split(data, part, start, longest) for part in ("train", "dev"))
        tuner = FineTuning(
            task=data.task,
            initial=InitialModel(architecture=start.architecture, network=network, labels=()),
            train=train,
            dev=dev,
            config=config,
            device_setup=DeviceSetup.from_settings(config.run),
            identity=name,
        )
        with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(None):
            trained = tuner.run(Path(place), seed, False, [])
        if trained.signal is not None:
            raise SystemExit(128 + trained.signal)
        lines, scores = evaluate_split(data.task, trained.network, dev, trained.autocast)
        parameters = sum(p.numel() for p in trained.network.encoder.parameters())
        settings = {"epochs": config.train.epochs, "batch": config.train.batch, "lr": config.optim.lr}
        return _result(data.task, scores, lines) | {"parameters": parameters, "step": trained.best_step} | settings

    def _split(self, data: Data, part: str, start: Model, longest: int) -> EncodedSplit[TextExample]:
        tokenizer = start.required_tokenizer
        key = data.task.name, part, longest, tokenizer_hash(tokenizer)
        examples = data.train if part == "train" else data.dev
        if key not in self.units:
            self.units[key] = data.task.units(examples, tokenizer, longest)[0]
        return EncodedSplit(examples, self.units[key])


def _result(task: TextTask, scores: dict[str, float], lines: Sequence[Json]) -> Json:
    row: Json = {"metric": task.metric, "score": scores[task.metric], "scores": scores}
    return row | ({"degenerate": reason} if (reason := degenerate_reason(lines)) else {})


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="GLUE: a folder with SST-2, MRPC, ...")
    parser.add_argument("--tasks", nargs="+", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--models", nargs="*", default=list(OWN), choices=OWN, help="which of these two")
    extra: Json = {"action": "append", "default": [], "metavar": "NAME=FOLDER"}
    parser.add_argument("--model", **extra, help="another; the first is what the others' averages are a share of")
    parser.add_argument("--default", default="default", help="folder that stands in for the default model")
    parser.add_argument("--qnli-split", action="store_true", help="QNLI without training file: learn from its dev file")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="first so many training examples")
    parser.add_argument("--set", nargs="+", default=[], metavar="[MODEL:]KEY=VALUE", help="settings of fine-tuning")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("default.jsonl"), help="rows, appended as they are done")
    parser.add_argument("--merge", nargs="+", type=Path, default=[], help="rows made elsewhere")
    parser.add_argument("--table", type=Path, help="file for the table")
    options = parser.parse_args()
    options.folders = dict(entry.partition("=")[::2] for entry in options.model)
    if wrong := [name for name, folder in options.folders.items() if name in OWN or not Path(folder).is_dir()]:
        parser.error(f"--model {wrong[0]}={options.folders[wrong[0]]}: needs a name of its own and a model folder")
    options.models = [*options.folders, *options.models]
    if options.models and options.data is None:
        parser.error("--data GLUE is needed to run anything")
    return options


def attempted(work: Callable[[str, str, int], Json], task: str, model: str, seed: int) -> Json:
    """What a run came to; what is wrong with one must not stop the others."""
    try:
        return work(task, model, seed)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    finally:
        gc.collect()  # recorded steps hold their memory until their cycle of references is found
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> None:
    """Run what is not done yet, then print the table of all there is."""
    options = parsed()
    bench = Bench(options)
    done = {key(row) for row in rows_in([*options.merge, options.out]) if "score" in row}
    # Every task and model with the first seed before the second: a run that is cut off leaves a whole table.
    for seed, task, model in product(range(options.seeds), options.tasks, options.models):
        row: Json = {"task": task, "model": model, "seed": seed}
        row |= attempted(bench.described, task, model, seed)
        if key(row) in done:
            continue
        if "error" not in row:
            row |= attempted(bench.run, task, model, seed)
        row["where"] = environment()
        print(json.dumps(row), flush=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    rows = rows_in([*options.merge, options.out])
    if not any("score" in row for row in rows):
        raise SystemExit("no run has come to its end, so there is no table")
    text = summary(rows, list(FOLDERS), next(iter(options.folders), None))
    print(text, flush=True)
    if options.table:
        options.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
