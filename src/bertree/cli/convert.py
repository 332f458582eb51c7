"""A verb's work: read what it was given, build the parts, run them, show the result."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.cli.info import print_json
from bertree.config.default_model import located
from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.inference.load import DTYPES, Candidate, Model
from bertree.interop import folder, onnx
from bertree.interop.description import LAYOUTS
from bertree.model.cost import describe_architecture


def fill(console: Console, model: Model, text: str, k: int, as_json: bool) -> None:
    """`bertree fill`: a table of candidates for each mask."""
    found = model.fill_mask(text, k)
    if not model.trained:
        note("a preset has random weights: its candidates mean nothing")
    masks: list[list[Candidate]] = [found] if isinstance(found[0], Candidate) else found
    if as_json:
        print_json([[candidate._asdict() for candidate in mask] for mask in masks])
        return
    for number, candidates in enumerate(masks, 1):
        table = Table("token", "probability", "", box=None, pad_edge=False)
        for candidate in candidates:
            bar = "█" * round(candidate.probability * 30)
            table.add_row(Text(candidate.token, "bold"), f"{candidate.probability:.4f}", Text(bar, "green"))
        if len(masks) > 1:
            console.print(f"mask {number} of {len(masks)}")
        console.print(table)


def convert_folder(source: Path, target: Path, to: str, dtype: str, force: bool) -> None:
    """`bertree convert`: read a folder of either kind, write the kind asked for."""
    if to not in (*LAYOUTS, "onnx"):
        raise UserError(f"--to {to}: {suggest(to, (*LAYOUTS, 'onnx'))}")
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: {suggest(dtype, DTYPES)}")
    source = located(source)
    if not source.exists():
        raise UserError(f"{source}: no such folder")
    if any((target / name).exists() for name in (folder.CONFIG, onnx.FILE)) and not force:
        raise UserError(f"{target}: holds a model already; give another folder, or --force to replace it")
    contents = folder.read(source)
    if to == "onnx":
        onnx.write(contents, target, dtype)
        if heads := [name for name in contents.network.heads if name not in ("mask", "pair")]:
            note(f"{target}: gives vectors; the head '{heads[0]}' is left out")
    else:
        folder.write(contents, target, to, DTYPES[dtype])
    print(f"{target}: {to} folder, {describe_architecture(contents.architecture)}")
