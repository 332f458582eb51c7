"""The options of all verbs, by the name of the Python keyword: help text, limits and how a default is shown.

The same name means the same thing everywhere: `data` are labeled files, `store` a token store, `texts` plain texts,
`text`, `pair`, `label`, `id` columns. A verb describes an option itself only where it means something narrower there.
Types and defaults are not here: they come from the signatures of the Python functions (see `command.py`).
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

TASKS_HERE = "{tasks}"  # replaced by the names of all tasks when help is shown
LAYERS = "last, embeddings, second-to-last, sum-last-four, concat-last-four, sum-all"


@dataclass(frozen=True)
class Keyword:
    """A parameter of a Python function, as its source declares it."""

    name: str
    annotation: str
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type(self) -> Any:
        """The type on the command line; what may be a text or something else is a text."""
        names = set(re.findall(r"\w+", self.annotation))
        plain: Any = next((kind for kind in (bool, int, float) if kind.__name__ in names), str)
        if plain is str and "Path" in names and not names & {"Model", "Task"} and self.default != "":
            plain = Path
        return list[plain] if self.repeated else plain

    @property
    def repeated(self) -> bool:
        """Whether it takes several values."""
        return "Sequence[" in self.annotation


@dataclass(frozen=True, kw_only=True)
class Option:
    """How an option or argument is described and checked on the command line."""

    help: str
    flags: tuple[str, ...] = ()  # in place of --name
    metavar: str | None = None
    default: str | bool = True  # what help shows as the default, if not the value
    min: float | None = None
    max: float | None = None
    parser: Callable[[str], Any] | None = None
    bare: str = ""  # the value if the option is written without one

    def option(self, keyword: Keyword | None = None) -> Any:
        """Return the description of an option for typer."""
        flags = self.flags
        if not flags and keyword is not None:
            flag = f"--{keyword.name.replace('_', '-')}"
            flags = (f"{flag}/--no-{flag[2:]}",) if keyword.type is bool and keyword.default is not False else (flag,)
        return typer.Option(*flags, **self._shared(keyword))

    def argument(self, keyword: Keyword | None = None) -> Any:
        """Return the description of an argument for typer."""
        return typer.Argument(**self._shared(keyword) | ({} if self.default is not True else {"show_default": False}))

    def _shared(self, keyword: Keyword | None) -> dict[str, Any]:
        hidden = (
            self.default is True and keyword is not None and (keyword.required or keyword.default in (None, "", ()))
        )
        whole = keyword is not None and keyword.type is int
        low, high = (int(limit) if whole and limit is not None else limit for limit in (self.min, self.max))
        return {
            "help": self.help,
            "metavar": self.metavar,
            "show_default": False if hidden else self.default,
            "min": low,
            "max": high,
            "parser": self.parser,
        }


def plain_number(text: str | int, low: int, high: int) -> int:
    """Read a whole number in plain digits; Python itself would take 1_000, a likely slip of the keyboard, for 1000."""
    if not re.fullmatch(r"[0-9]{1,18}", str(text)) or not low <= int(text) <= high:
        raise typer.BadParameter(f"{text} is not a whole number from {low} to {high}.")
    return int(text)


OPTIONS: dict[str, Option] = {
    # What a verb acts on
    "model": Option(
        metavar="MODEL",
        help="A model folder (bertree, Hugging Face, sentence-transformers), a run, a preset, or: default (bundled).",
    ),
    "models": Option(metavar="[MODEL ...]", help="Model folders, runs, or: default."),
    "file": Option(
        metavar="FILE",
        help="One text per line (.txt), or .jsonl, .csv, .tsv, .parquet; also .gz .xz .zst; - is standard input.",
    ),
    "corpus": Option(
        metavar="CORPUS",
        help="Files, folders, globs (.txt .jsonl .csv .tsv .parquet, each also .gz .xz .zst) or - for standard input.",
    ),
    "recipe": Option(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file."),
    "settings": Option(metavar="[key=value ...]", help="Settings: epochs=3 lr=3e-5 ...; the section may be left out."),
    # Files
    "out": Option(help="Folder of the run."),
    "data": Option(help="Folder with the task's files (train, dev, test), or one file."),
    "store": Option(help="Token store to learn from (see `bertree prepare`)."),
    "train": Option(help="Training file, instead of the folder's."),
    "dev": Option(help="File to evaluate on, instead of the folder's."),
    "texts": Option(help="Texts to time them on: .txt (a text a line), .jsonl, .csv, .tsv."),
    "vectors": Option(help="Vectors of FILE that `bertree embed` has written; no model is run."),
    "tokenizer": Option(help="Folder with the tokenizer, if it is not the model's own."),
    "format": Option(help="text, jsonl, csv, tsv or parquet, where the name does not say it."),
    # Columns
    "text": Option(help="Column with the text."),
    "pair": Option(help="Column with the second text."),
    "label": Option(help="Column with the label or score."),
    "negative": Option(help="Column with a negative; may be given several times."),
    # The task
    "task": Option(help=TASKS_HERE),
    "split": Option(help="dev, test ...", default="dev, else test, else what fine-tuning holds out"),
    "frozen": Option(
        metavar="[LAYERS]",
        help=f"Keep the encoder as it is and solve a linear head on its vectors. LAYERS that are read: {LAYERS}. For "
        "tags, and with lstm=256 (a BiLSTM reads them), the head is trained.",
        bare="last",
    ),
    "few_shot": Option(
        help="For 8 to 64 examples of a class: the encoder learns to tell the classes apart by pairs of texts, then "
        "the head is solved. per_class=8 draws that many."
    ),
    "from_task": Option(
        metavar="RUN", help="A run on another task that began with MODEL: start from its encoder, with a new head."
    ),
    "submission": Option(help="Folder for the file that the task's server takes (GLUE, SQuAD)."),
    "student": Option(
        help="half (every other layer of the teacher), a preset (bert-mini, albert-base ...); on text also a recipe, "
        "on a task a model folder or bilstm."
    ),
    "loss": Option(help="The loss to train with."),
    "seeds": Option(
        parser=lambda text: plain_number(text, 1, 1000),
        metavar="<int range> [1<=x<=1000]",
        help="Runs with different seeds; the best is kept.",
    ),
    "resume": Option(help="Continue a run that was stopped."),
    "epochs": Option(min=0, max=1e6, help="Passes over the data. 0: 3, or as the recipe says."),
    "cache": Option(help="With --store: folder to keep the teacher's likeliest tokens in, for other students."),
    "seconds": Option(min=0, max=86400, help="Time for timing the models."),
    # How it is computed
    "device": Option(help="cpu, cuda, cuda:1 ...; auto: cuda if there is one."),
    "precision": Option(help="Compute in float32, bfloat16 or, on a CPU, int8: several times faster where it has AMX."),
    "max_length": Option(min=0, help="Tokens per sequence; 0: the model's own maximum."),
    "batch_tokens": Option(min=0, help="Tokens computed at once; 0: chosen for the device."),
    "workers": Option(min=1, help="Processes.", default="all cores"),
    "engine": Option(help="local: this machine; ray: a Ray cluster (see docs/ray.md)."),
    "address": Option(
        metavar="HOST:PORT",
        help="Where the Ray cluster is, or: auto.",
        default="RAY_ADDRESS, or a cluster started here for this run",
    ),
    "seed": Option(min=0, help="The same seed gives the same result."),
    # Sentence vectors
    "prompt": Option(help="One of the model's prompts by its name (query), or a text to put first."),
    "normalize": Option(help="Scale vectors to length 1."),
    "dtype": Option(help="Number type of the file: float32, or float16 for half the size."),
    "pooling": Option(help="cls, mean, max, min, last, sqrt, weighted in place of the model's own; may be repeated."),
    "glove": Option(help="Word vectors as a baseline: one word and its numbers per line; also .xz."),
    "k": Option(flags=("-k", "--top"), min=1, help="Results to show."),
    "min_similarity": Option(help="The smallest cosine of a pair."),
    "min_size": Option(min=2, help="Without --clusters: fewest texts of a group."),
    "clusters": Option(min=1, help="Number of clusters; without it, all groups that are similar enough."),
    "layers": Option(help=f"{LAYERS}."),
    # Text and tokens
    "kind": Option(help="wordpiece (BERT), bpe (RoBERTa), unigram (ALBERT), xlnet, words (ELMo) or bytes."),
    "vocab_size": Option(help="Tokens in the vocabulary."),
    "cased": Option(
        flags=("--cased/--uncased",),
        help="Keep capitals or not.",
        default="uncased for wordpiece and unigram, cased for the others",
    ),
    "language": Option(help="Code of the language, for splitting sentences."),
    "whole_files": Option(help="A text file is one document (else an empty line ends one)."),
    "wrapped": Option(help="Lines are wrapped: a single line end is a space, not the end of a sentence."),
    "deduplicate": Option(help="Leave out exact copies of documents."),
    "min_characters": Option(min=1, help="Leave out shorter documents."),
    "control": Option(
        metavar="WHERE",
        help="Give each document a control code, which stands before all its text: folder (name of its folder), "
        "file, or a column; url:host and date:year take a part of it.",
        default="no codes",
    ),
    "control_default": Option(metavar="CODE", help="Code of documents without one.", default="refuse"),
    "given": Option(
        metavar="COLUMN",
        help="Text after the code of each document, such as its url; neither is predicted.",
        default="none",
    ),
    # Convert
    "to": Option(metavar="bertree|huggingface|onnx|elmo", help="Kind of folder to write; hf is huggingface."),
    "force": Option(help="Replace DST if it holds a model already."),
    # Indexes
    "schema": Option(help="Schema in the database."),
    "table": Option(help="Table in the database."),
}
# Settings of a training run that are also options: `--device cpu` is `run.device=cpu`.
TRAINING_OPTIONS = {
    "device": Option(help="cpu, cuda, cuda:1 ...", default="auto"),
    "precision": Option(help="Train in float32 or bfloat16.", default="auto"),
}
# For verbs that declare their options themselves:
ModelArgument = Annotated[str, OPTIONS["model"].argument()]
DeviceOption = Annotated[str, OPTIONS["device"].option()]
PrecisionOption = Annotated[str, OPTIONS["precision"].option()]
TokenizerOption = Annotated[str | None, OPTIONS["tokenizer"].option()]
TextOption = Annotated[str | None, OPTIONS["text"].option()]
FormatOption = Annotated[str | None, OPTIONS["format"].option()]
LengthOption = Annotated[int, OPTIONS["max_length"].option()]
EngineOption = Annotated[str, OPTIONS["engine"].option()]
AddressOption = Annotated[str | None, OPTIONS["address"].option()]
SchemaOption = Annotated[str, OPTIONS["schema"].option()]
TableOption = Annotated[str, OPTIONS["table"].option()]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no notes.")
]
