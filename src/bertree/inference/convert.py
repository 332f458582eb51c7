"""Convert a model folder: to bertree's form, to Hugging Face's, or to ONNX."""

from pathlib import Path

from bertree.config.default_model import resolve_model_path
from bertree.config.precision import parse_precision
from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.inference.loaded import DTYPES
from bertree.interop import folder, onnx
from bertree.interop.description import LAYOUTS
from bertree.model.architecture import Architecture

ONNX = "onnx"


def convert(
    source: str | Path, target: str | Path, to: str, precision: str = "float32", force: bool = False
) -> Architecture:
    """Read a model folder of either kind and write another; return its architecture.

    `to`: bertree, huggingface or onnx. `precision`: of the written weights. `force=True` replaces a model in `target`.
    """
    if to not in (*LAYOUTS, ONNX):
        raise UserError(f"`to={to}`: {suggest(to, (*LAYOUTS, ONNX))}")
    precision = parse_precision(precision)
    source, target = resolve_model_path(source), Path(target)
    if not source.exists():
        raise UserError(f"{source}: no such folder")
    if any((target / name).exists() for name in (folder.CONFIG, onnx.FILE)) and not force:
        raise UserError(f"{target}: holds a model already; give another folder, or `force=True` to replace it")
    contents = folder.read(source)
    if to == ONNX:
        onnx.write(contents, target, precision)
        if heads := [name for name in contents.network.heads if name not in ("mask", "pair")]:
            note(f"{target}: gives vectors; the head '{heads[0]}' is left out")
    else:
        if to == "huggingface":
            folder.check_huggingface(contents, source)
        folder.write(contents, target, to, DTYPES[precision])
    return contents.architecture
