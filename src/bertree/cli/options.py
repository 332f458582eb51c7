"""Arguments and options that several verbs share. The same name means the same thing everywhere.

--data: labelled files; --store: a token store; --texts: plain texts; --text, --pair, --label, --id: columns.
"""

import re
from pathlib import Path
from typing import Annotated

import typer


def plain_number(text: str | int, low: int, high: int) -> int:
    """Read a whole number in plain digits; Python itself would take 1_000, a likely slip of the keyboard, for 1000."""
    if not re.fullmatch(r"[0-9]{1,18}", str(text)) or not low <= int(text) <= high:
        raise typer.BadParameter(f"{text} is not a whole number from {low} to {high}.")
    return int(text)


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model folder (bertree, Hugging Face, sentence-transformers), a preset, or: default, the bundled model.",
        show_default=False,
    ),
]
FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="One text per line (.txt), or .jsonl, .csv, .tsv, .parquet; also .gz .xz .zst; - is standard input.",
        show_default=False,
    ),
]
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value ...]", help="Settings: epochs=3 lr=3e-5 ...; the section may be left out."),
]
TASKS_HERE = "{tasks}"  # replaced by the names of all tasks when help is shown
TaskOption = Annotated[str, typer.Option("--task", help=TASKS_HERE, show_default=False)]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder with the task's files (train, dev, test), or one file.")
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Token store to learn from (see `bertree prepare`).", show_default=False)
]
TrainFileOption = Annotated[Path | None, typer.Option("--train", help="Training file, instead of the folder's.")]
DevFileOption = Annotated[Path | None, typer.Option("--dev", help="File to evaluate on, instead of the folder's.")]
TextOption = Annotated[str | None, typer.Option("--text", help="Column with the text.")]
PairOption = Annotated[str | None, typer.Option("--pair", help="Column with the second text.")]
LabelOption = Annotated[str | None, typer.Option("--label", help="Column with the label or score.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="text, jsonl, csv, tsv or parquet, where the name does not say it.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 ...; auto: cuda if there is one.")]
TrainDeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1 ... [default: auto]", show_default=False)
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision", help="Compute in float32, bfloat16 or, on a CPU, int8: several times faster where it has AMX."
    ),
]
TrainPrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="Train in float32 or bfloat16. [default: auto]", show_default=False),
]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="Folder with the tokenizer, if it is not the model's own.")
]
LengthOption = Annotated[
    int, typer.Option("--max-length", min=0, help="Tokens per sequence; 0: the model's own maximum.")
]
BatchTokensOption = Annotated[
    int, typer.Option("--batch-tokens", min=0, help="Tokens computed at once; 0: chosen for the device.")
]
PromptOption = Annotated[
    str | None,
    typer.Option("--prompt", help="One of the model's prompts by its name (query), or a text to put first."),
]
NormalizeOption = Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")]
VectorsOption = Annotated[
    Path | None, typer.Option("--vectors", help="Vectors of FILE that `bertree embed` has written; no model is run.")
]
TableOption = Annotated[Path | None, typer.Option("--out", help="File to write: .jsonl, .csv or .tsv.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="local: this machine; ray: a Ray cluster (pip install 'bertree\\[ray]').")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Where the Ray cluster is, or: auto.",
        show_default="RAY_ADDRESS, or a cluster started here for this run",
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option(
        "--seeds",
        parser=lambda text: plain_number(text, 1, 1000),
        metavar="<int range> [1<=x<=1000]",
        help="Runs with different seeds; the best is kept.",
    ),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def training_settings(settings: list[str] | None, device: str | None, precision: str | None) -> list[str]:
    """Return the settings with the values of --device and --precision."""
    given = [("run.device", device), ("run.precision", precision)]
    return [*(settings or []), *(f"{key}={value}" for key, value in given if value is not None)]
