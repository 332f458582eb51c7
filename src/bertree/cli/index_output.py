"""The work behind `bertree index`: load the model, build or ask the index, print."""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bertree.config.default_model import located
from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json
from bertree.inference.load import Model, device_of, load
from bertree.model.presets import DEFAULT
from bertree.search.documents import total_size
from bertree.search.faiss_index import Watch
from bertree.search.hit import Hit
from bertree.search.index import CANDIDATES, Index
from bertree.search.writer import AddSummary

SHOWN = 12  # sources that are listed


def build_index(model: str, docs: Sequence[str], out: Path, *, device: str, precision: str, **settings: Any) -> Index:
    """`bertree index build`."""
    total = total_size(docs)  # says what is wrong with a path before a model is loaded
    encoder = _model(model, device, precision)
    try:
        with _watched("embedding", total) as watch:
            index = Index.build(encoder, docs, out, name=_name(model), watch=watch, **settings)
    except KeyboardInterrupt:
        raise UserError(f"{out}: interrupted; run the same command again to go on from the last commit") from None
    known = index.info
    _added(index)
    if not known["documents"]:
        note(f"{out}: is empty, for nothing that was given has text in it; add to it with `bertree index add`")
    _say(f"{out}: {_contents(known)}, {known['bytes']['all'] / 1e6:,.1f} MB")
    _say(f"{known['kind']}: {known['why']}")
    return index


def add_documents(
    model: str,
    folder: Path,
    docs: Sequence[str],
    *,
    text: str,
    id: str | None,
    blocks: bool,
    device: str,
    precision: str,
) -> AddSummary:
    """`bertree index add`."""
    total = total_size(docs)
    with Index.open(folder, _model(model, device, precision)) as index:
        try:
            with _watched("embedding", total) as watch:
                added = index.add(docs, text=text, id=id, blocks=blocks, watch=watch)
        except KeyboardInterrupt:
            again = "run the same command again to go on from the last commit"
            raise UserError(f"{folder}: interrupted; {again}") from None
        _added(index)
        _say(f"{folder}: {_contents(index.info)}")
    return added


def remove_documents(folder: Path, ids: Sequence[str], where: Sequence[str]) -> int:
    """`bertree index remove`."""
    if not ids and not where:
        raise UserError("remove: say what, by ids or by --where key=value")
    with Index.open(folder) as index:
        with _watched("removing", None) as watch:
            gone = index.remove(ids, filters(where) if where else None, watch)
        known = index.info
    if not gone:
        wanted = ", ".join(ids) or ", ".join(where)
        raise UserError(f"{folder}: no document is there to remove ({wanted}); nothing was changed")
    if not where and gone < len(set(ids)):
        note(f"{folder}: {len(set(ids)) - gone:,} of these ids were not there")
    _say(f"{folder}: {_several(gone, 'document')} removed; {_contents(known)}")
    return gone


def ask(
    folder: Path,
    question: str,
    k: int,
    *,
    where: Sequence[str],
    model: str | None,
    rerank: str | None,
    candidates: int | None,
    label: str | None,
    device: str,
    precision: str,
    as_json: bool,
) -> list[Hit]:
    """`bertree index query`."""
    for option, given in (("--label", label), ("--candidates", candidates)):
        if given is not None and rerank is None:
            raise UserError(f"{option}: is for a second model, which --rerank names")
    with Index.open(folder) as unasked:
        known = unasked.state
    if not known.complete:
        note(f"{folder}: was not finished; what is there is searched (run `bertree index build` again to go on)")
    with Index.open(folder, _model(model or _remembered(folder, known.model), device, precision)) as index:
        second = load(rerank, device=device_of(device)) if rerank else None
        hits = index.search(
            question, k, where=filters(where), rerank=second, candidates=candidates or CANDIDATES, label=label
        )
    if rerank and hits:
        note(f"the scores are those of {rerank}, not cosines")
    if as_json:
        print(json.dumps([hit.json() for hit in hits], ensure_ascii=False, indent=1))
        return hits
    if not hits:
        note("nothing was found" if known.vectors > known.dead else f"{folder}: is empty")
    for number, hit in enumerate(hits, 1):
        about = ", ".join(f"{key}={value}" for key, value in hit.metadata.items())
        _say(f"{number}  {hit.score:.3f}  {hit.document}  {hit.start}-{hit.end}{f'  {about}' if about else ''}")
        text = " ".join(hit.text.split())
        _say(textwrap.fill(text, 110, initial_indent="   ", subsequent_indent="   ", max_lines=6, placeholder=" …"))
    return hits


def show(folder: Path, check: bool, as_json: bool) -> Json:
    """`bertree index info`."""
    with Index.open(folder) as index:
        if check:
            index.verify()
        known = index.info
    if as_json:
        print(json.dumps(known, ensure_ascii=False, indent=1))
        return known
    sizes, chunking = known["bytes"], known["chunking"]
    parts = ", ".join(f"{name} {bytes / 1e6:,.1f}" for name, bytes in sizes.items() if name != "all")
    for name, value in (
        ("contents", _contents(known) + ("" if known["complete"] else " (not finished)")),
        ("kind", f"{known['kind']}: {known['why']}"),
        ("vectors", f"{known['dimension']} numbers each, of the model {known['model']['path'] or 'given in Python'}"),
        ("weights", known["model"]["digest"]),
        ("passages", f"up to {chunking['tokens']} tokens, {chunking['overlap']} of them repeated"),
        ("removed", f"{known['removed']:,} vectors, left out at the next tidying") if known["removed"] else ("", ""),
        ("metadata", ", ".join(known["metadata"]) or "none"),
        ("size", f"{sizes['all'] / 1e6:,.1f} MB: {parts}"),
        ("made with", ", ".join(f"{k} {v}" for k, v in known["versions"].items()) + f"; format {known['format']}"),
        ("checked", "every byte is what was written") if check else ("", ""),
    ):
        if name:
            _say(f"{name:<10} {value}")
    sources = list(known["sources"].items())
    for source, count in sources[:SHOWN]:
        _say(f"  {count:>10,}  {source or '(no file)'}")
    if len(sources) > SHOWN:
        _say(f"  ... and {len(sources) - SHOWN:,} more sources")
    return known


def filters(given: Sequence[str]) -> dict[str, list[str]]:
    """`key=value` options; one key several times means any of its values."""
    found: dict[str, list[str]] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--where {item}: must be key=value, such as book=Emma")
        found.setdefault(key, []).append(value)
    return found


def _model(name: str, device: str, precision: str) -> Model:
    model = load(name, device=device_of(device), dtype=precision)
    if not model.trained:
        note(f"{name}: has fresh weights, so what it finds means nothing")
    return model


def _name(model: str) -> str:
    """How the index finds the model again from any folder."""
    path = located(model)
    return DEFAULT if model == DEFAULT and path != Path(model) else str(path.resolve()) if path.exists() else model


def _remembered(folder: Path, name: str) -> str:
    if not name:
        raise UserError(f"{folder}: does not say where its model is; give it with --model")
    if name != DEFAULT and not Path(name).exists():
        raise UserError(f"{folder}: its model was at {name}, which is gone; say with --model where it is now")
    return name


def _contents(known: Json) -> str:
    return f"{_several(known['documents'], 'document')} in {_several(known['passages'], 'passage')}"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _added(index: Index) -> None:
    done = index.added
    parts = (
        (done.new, "new"),
        (done.replaced, "replaced"),
        (done.unchanged, "unchanged"),
        (done.gone, "removed (no longer in their file)"),
    )
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count) or "no documents"
    _say(f"{said}; {_several(done.passages, 'passage')} embedded")
    for line in index.found.lines():
        _say(f"  {line}")


def _say(line: str) -> None:
    Console().print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _watched(what: str, total: int | None) -> Iterator[Watch]:
    """A bar on standard error, silent where that is not a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figure]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with shown as progress:
        task = progress.add_task(what, total=total, figure="")
        read = 0

        def watch(doing: str, count: int, of: int | None) -> None:
            nonlocal read
            if doing == "reading":  # characters, which for most text are about as many as bytes
                read += count
                done = min(read, total) if total else read
                progress.update(task, completed=done, figure=f"{read / 1e6:,.1f} MB of text")
            else:
                figure = f"{count:,} of {of:,}" if of else ""
                progress.update(task, description=doing, completed=count, total=of, figure=figure)

        yield watch
