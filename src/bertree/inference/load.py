"""Load a model by path or by name, and convert a model folder to another kind; the result of a training run (its
folder, and what lies in it)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertree.config.names import cache_folder, cached_names, is_hub_name, parse_precision, resolve_model_path
from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.files.atomic import MODEL_KIND, refuse_other
from bertree.files.formats import Json, read_json, read_json_lines
from bertree.inference.cpu_linear import DTYPES, weights_dtype
from bertree.inference.mask_filling import Candidate
from bertree.inference.model import Model
from bertree.interop import elmo, folder, onnx
from bertree.interop.contents import Contents, head_classes
from bertree.interop.description import LAYOUTS
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import DEFAULT, PRESETS
from bertree.result_table import ResultTable, ShownAsTable, figure_rows
from bertree.run_folder import METRICS, MODEL, REPORT, SCORES
from bertree.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertree.tasks.task import Task

__all__ = ["DTYPES", "Candidate", "Model", "load", "make_model", "random_model"]

SIMILAR, TYPO = 0.7, 0.9  # similarity of names above which one is suggested; TYPO: one letter is wrong


def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    precision: str | torch.dtype = "float32",
    tokenizer: str | Path | None = None,
    seed: int = 0,
) -> Model:
    """Load a model: a folder (bertree's or Hugging Face's; of a run, its model), `default` for the bundled model, a
    model of the Hugging Face hub that is in the local cache ("bert-base-uncased"; never the network), or a preset with
    random weights drawn from `seed`.

    `device`: cpu, cuda ..., or auto. `precision`: float32, bfloat16, float16 or int8, also as fp32, bf16, fp16 or a
    torch dtype; see `Model.to`. `tokenizer`: a folder whose tokenizer is used; a preset then gets the size of its
    vocabulary.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise UserError(f"load: takes the name or the folder of a model, not {name!r:.60}")
    chosen = parse_precision(precision)
    device = choose_device(device)
    own_tokenizer = _load_tokenizer(resolve_model_path(tokenizer)) if tokenizer is not None else None
    path = resolve_model_path(name)
    try:
        exists = path.exists()
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None
    if exists:
        model = make_model(folder.read(path, weights_dtype(chosen, device), own_tokenizer), source=path)
    else:
        a = _preset(str(name))
        sized = a.with_values({"vocab_size": own_tokenizer.size}) if own_tokenizer else a
        model = random_model(sized, a.default_heads, seed)
        model.preset = str(name)
        model.tokenizer = own_tokenizer
    return model.to(device, chosen)


def _preset(name: str) -> Architecture:
    if name in PRESETS:
        return PRESETS[name].architecture
    if not is_hub_name(name):
        raise UserError(f"{name}: no such folder")
    trained = difflib.get_close_matches(name, [DEFAULT], n=1, cutoff=SIMILAR)
    trained = trained or difflib.get_close_matches(name, cached_names(), n=1, cutoff=TYPO)
    # Only for a slip of the keys: random weights must not pass for the trained ones of a similar name.
    untrained = difflib.get_close_matches(name, PRESETS, n=1, cutoff=TYPO)
    fetch = f"bertree downloads nothing: fetch the model (hf download {name} --local-dir FOLDER) and give its folder"
    if trained:
        advice = f"did you mean '{trained[0]}'?"
    elif untrained:
        advice = f"did you mean the preset '{untrained[0]}', which has random weights? Else {fetch}"
    else:
        advice = f"{fetch}; presets, which have random weights: bertree info"
    where = f"no such folder or preset, and not in the local Hugging Face cache ({cache_folder()})"
    raise UserError(f"{name}: {where}; {advice}")


def _load_tokenizer(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(path) if path.is_dir() else None
    if tokenizer is None:
        raise UserError(
            f"{path}: holds no tokenizer (tokenizer.json, vocab.txt, vocab.json + merges.txt or spiece.model)"
        )
    return tokenizer


def make_model(contents: Contents, trained: bool = True, source: Path | None = None) -> Model:
    """Make a model of a folder's contents: a `TaskModel` if it has the head of a task."""
    if set(head_classes(contents.network)) <= {"mask", "pair"}:
        return Model(contents, trained, source)
    from bertree.inference.task_model import TaskModel

    return TaskModel(contents, trained, source)


def random_model(a: Architecture, heads: dict[str, int], seed: int = 0) -> Model:
    """Build a model with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model(Contents(a, build(a, heads)), trained=False)


def choose_device(name: str | torch.device) -> str:
    """Return the name of a device; `auto` is a GPU if there is one."""
    return str(name) if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def load_or_take(model: str | Path | Model, **options: Any) -> tuple[Model, str]:
    """Return a model, loaded if it is a path, and its name for messages. `options` are those of `load`."""
    if isinstance(model, Model):
        return model, model.name
    return load(model, **options), str(model)


def identify(model: str | Path | Model) -> str:
    """Return what must be the same when a run that began with this model is resumed."""
    if isinstance(model, Model):
        return model.digest
    path = Path(model)
    return str((resolve_model_path(path) if path.exists() else path).resolve())


def stored_task(model: str | Path | Model, columns: Mapping[str, str | None]) -> "Task[Any]":
    """Return the task that a model was fine-tuned for, from its folder, without loading it; some columns may differ."""
    from bertree.tasks.registry import task_of_settings

    folder_path = Path() if isinstance(model, Model) else resolve_model_path(model)
    stored = model.task if isinstance(model, Model) else folder.read_task(folder_path)
    name = model.name if isinstance(model, Model) else str(model)
    if not stored.get("name"):
        raise UserError(f"{name}: does not say which task it was fine-tuned for; name one with `task`")
    return task_of_settings(stored, columns)


ELMO, ONNX = "elmo", "onnx"


def convert(
    source: str | Path, target: str | Path, to: str, precision: str = "float32", force: bool = False
) -> Architecture:
    """Read a model folder of either kind and write another; return its architecture.

    `to`: bertree, huggingface (or hf), onnx, or elmo (its authors' layout, always float32). `precision`: of the written
    weights. `force=True` replaces a model in `target`.
    """
    to = "huggingface" if to == "hf" else to
    if to not in (*LAYOUTS, ONNX, ELMO):
        raise UserError(f"`to={to}`: {suggest(to, (*LAYOUTS, 'hf', ONNX, ELMO))}")
    precision = parse_precision(precision)
    source, target = resolve_model_path(source), Path(target)
    if not source.exists():
        raise UserError(f"{source}: no such folder")
    refuse_other(target, MODEL_KIND, force)
    contents = folder.read(source)
    if to == ELMO:
        elmo.write_elmo(contents, target)
        if heads := list(contents.network.heads):
            note(f"{target}: holds the encoder; the head '{heads[0]}' is left out")
    elif to == ONNX:
        onnx.write(contents, target, precision)
    else:
        if to == "huggingface":
            folder.check_huggingface(contents, source)
        try:
            folder.write(contents, target, to, DTYPES[precision])
        except UserError as error:  # a tensor that cannot be written is one of the source
            raise error if str(error).startswith(str(target)) else UserError(f"{source}: {error}") from None
    return contents.architecture


@dataclass(frozen=True, repr=False)
class Run(ShownAsTable):
    """A training run in its folder.

    `run.model` is the trained model, `run.metrics` its final scores, `run.history` the rows of the log, `run.report`
    the path of the page. After Ctrl-C `run.complete` is False; call the same function with `resume=True` to continue.
    """

    folder: Path
    signal: int | None = None  # the signal that ended it early
    learned: bool = True  # False if no seed has learned anything, or no held-out loss was lower than before adaptation

    @property
    def complete(self) -> bool:
        """Whether the run came to its end and has learned something."""
        return self.signal is None and self.learned

    @cached_property
    def model(self) -> Model:
        """The trained model: the best of a fine-tuning run, the last of a pretraining run."""
        if not (self.folder / MODEL).is_dir():
            raise UserError(f"{self.folder}: has no model yet; go on with the run (`resume=True`)")
        return load(self.folder / MODEL)

    @property
    def metrics(self) -> Json:
        """The final scores: those on the dev split, or of the last evaluation on held-out text. Of a run that was
        stopped before its first evaluation, the figures of the last logged step."""
        if (self.folder / SCORES).is_file():
            return read_json(self.folder / SCORES)
        rows = {row["kind"]: row for row in self.history if row.get("kind") in ("eval", "train")}
        return rows.get("eval") or rows.get("train") or {}

    @property
    def history(self) -> list[Json]:
        """The log of the run, a row for each line; of several seeds the best one's, before their end the latest's."""
        seed: Any = read_json(self.folder / SCORES).get("best_seed") if (self.folder / SCORES).is_file() else None
        paths = [self.folder / METRICS, *self.folder.glob(f"seed-*/{METRICS}")]
        if seed is not None:
            paths = [self.folder / f"seed-{seed}" / METRICS]
        path = max(filter(Path.is_file, paths), key=lambda path: path.stat().st_mtime_ns, default=None)
        return list(read_json_lines(path)) if path else []

    @property
    def report(self) -> Path:
        """The page with curves, scores and examples."""
        return self.folder / REPORT

    def _result_table(self) -> ResultTable:
        stopped = "stopped; go on with resume=True" if self.signal is not None else "has learned nothing"
        state = "complete" if self.complete else stopped
        return ResultTable(f"{self.folder}: {state}", figure_rows(self.metrics))
