"""`bertree.layers`: measure the layers of one model or two on the texts of a file, and show them as a page."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bertree.console import note, showing
from bertree.errors import UserError
from bertree.files.atomic import refuse_other, write_into_folder
from bertree.files.formats import Json
from bertree.inference.layer_sums import analyze
from bertree.inference.load import choose_device, load, load_or_take
from bertree.inference.loaded import LoadedModel
from bertree.inference.model import Model
from bertree.inference.states import inspect_text
from bertree.inference.text_rows import TextRows
from bertree.report.layers import LayerAnalysis, layers_page
from bertree.text.memory import Rows, takes_rows, task_fields

EXAMPLES, EXAMPLE_TOKENS, CANDIDATES = 3, 64, 3  # single texts in a report, their tokens, and candidates of the lens


@takes_rows(texts=task_fields)
def layers(
    model: str | Path | Model,
    other: str | Path | Model | None = None,
    *,
    texts: str | Path | Rows,
    text: str | None = None,
    format: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    device: str = "auto",
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> LayerAnalysis:
    """Measure what each layer of a model, or of two, does to the texts of a file.

    Distance and cosine of each layer's input and output, norms and anisotropy of its states, CKA of all layers, what
    each attention head looks at and, with an MLM or LM head, what each layer would predict. `text` names a column;
    `out` is an .html file for a page, which also shows the first three texts head by head.

    >>> bertree.layers("my-bert", "my-small-bert", texts="mail.txt").models[1].cosine
    """
    with showing(progress):
        target = _check_page(out)
        rows = TextRows(str(texts), text, format)
        models = [_load(name, device, tokenizer) for name in (model, other) if name is not None]
        first: list[str] = []
        analysis = analyze(models, _filled(rows, first), max_length or None, batch_tokens)
        if empty := rows.counts.empty:
            note(f"{rows.name}: {empty:,} of {rows.counts.rows:,} rows are empty and were left out")
        examples = [{"text": example, "models": [_example(reader, example) for reader in models]} for example in first]
        analysis = replace(analysis, examples=examples)
        if target is not None:
            write_into_folder(target, layers_page(analysis, rows.name))
        return analysis


def _check_page(out: str | Path | None) -> Path | None:
    """Return the path to write; refuse it before the work, not after it."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise UserError(f"{path}: is written as a page; give a file with the ending .html")
    refuse_other(path)
    return path


def _load(model: str | Path | Model, device: str, tokenizer: str | Path | None) -> Model:
    loaded, name = load_or_take(model, device=choose_device(device))
    if loaded.tokenizer is None and tokenizer is not None and not isinstance(model, Model):
        loaded = load(model, device=choose_device(device), tokenizer=tokenizer)
    if loaded.tokenizer is None:
        raise UserError(f"{name}: has no tokenizer to read texts with; give `tokenizer=FOLDER`")
    if not loaded.trained:
        note(f"{name}: a preset has random weights; its layers have learned nothing")
    return loaded


def _filled(rows: TextRows, first: list[str]) -> Iterator[str]:
    """Yield the texts that are not empty, and keep the first of them."""
    for text in rows:
        if text.strip():
            if len(first) < EXAMPLES:
                first.append(text)
            yield text


def _example(model: LoadedModel, text: str) -> Json:
    """Return one text in every layer, as the page's script reads it: two bytes for a weight."""
    inspection = inspect_text(model, text, CANDIDATES, EXAMPLE_TOKENS)
    attention = None
    if inspection.attention is not None:
        weights = (inspection.attention.clamp(0, 1) * 65535).round().cpu().numpy().astype("<u2")
        attention = [b64encode(layer.tobytes()).decode() for layer in weights]
    lens = (
        None
        if inspection.lens is None
        else [
            [[{"text": c.token, "probability": round(c.probability, 6)} for c in token] for token in layer]
            for layer in inspection.lens
        ]
    )
    norms = inspection.norms.double().cpu().numpy().round(4).tolist()
    tokens, cut = inspection.tokens, inspection.dropped > 0
    return {"tokens": tokens, "attention": attention, "lens": lens, "norms": norms, "cut": cut}
