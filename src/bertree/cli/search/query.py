"""`index query` and `info`."""

from typing import Annotated

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import DeviceOption, JsonOption, PrecisionOption
from bertree.cli.search.options import (
    DatabaseTableOption,
    FolderOrAddressArgument,
    ModelOption,
    SchemaOption,
    WhereOption,
    filters,
    load_encoder,
)
from bertree.console import note
from bertree.errors import UserError


def register(verbs: typer.Typer) -> None:
    """Add the verbs to those of an index."""
    for function in (query, info):
        verb(verbs)(function)


def query(
    index: FolderOrAddressArgument,
    question: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Passages to show.")] = 5,
    where: WhereOption = None,
    model: ModelOption = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A model fine-tuned on pairs, to score the best passages again.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Passages it scores. [default: 50]")] = None,
    label: Annotated[
        str | None, typer.Option(help="Its class that means a match, where the name does not say it.")
    ] = None,
    schema: SchemaOption = "public",
    table: DatabaseTableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Query an index: the passages nearest to a question.

    [dim]bertree index query my-index "Who hunts the white whale?" -k 3
    bertree index query my-index "a proposal of marriage" --where book=Emma --json
    bertree index query my-index "Is it raining?" --rerank my-cross-encoder/model
    bertree index query postgresql://user@host/database "Is it raining?"[/dim]
    """
    from bertree.cli.render.index import print_hits
    from bertree.inference.load import choose_device, load
    from bertree.search.index import open_index
    from bertree.search.searcher import CANDIDATES

    for option, given in (("--label", label), ("--candidates", candidates)):
        if given is not None and rerank is None:
            raise UserError(f"{option}: is for a second model, which --rerank names")
    with open_index(index, None, schema, table) as unloaded:
        name, passages, state = unloaded.name, len(unloaded), unloaded.state
        chosen = model or unloaded.model_path
    if not getattr(state, "complete", True):
        note(f"{name}: is not finished; what is there is searched (run `bertree index build` again to go on)")
    encoder = load_encoder(chosen, device, precision)
    with open_index(index, encoder, schema, table) as opened:
        second = load(rerank, device=choose_device(device)) if rerank else None
        hits = opened.search(
            question, k, where=filters(where or []), rerank=second, candidates=candidates or CANDIDATES, label=label
        )
    if rerank and hits:
        note(f"the scores are those of {rerank}, not cosines")
    if as_json:
        print_json([hit.json() for hit in hits])
        return
    if not hits:
        note("nothing was found" if passages else f"{name}: is empty")
    print_hits(hits)


def info(
    index: FolderOrAddressArgument,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare it with its checksum.")] = False,
    schema: SchemaOption = "public",
    table: DatabaseTableOption = "bertree",
    as_json: JsonOption = False,
) -> None:
    """Describe an index: kind and why, documents, model, size, sources.

    [dim]bertree index info my-index --json[/dim]
    """
    from bertree.cli.render.index import print_exported_info, print_index_info
    from bertree.search.index import Index, open_index

    with open_index(index, None, schema, table) as opened:
        if isinstance(opened, Index):
            if check:
                opened.verify()
        elif check:
            raise UserError("--check: is for an index on disk; a database checks its own pages")
        found = opened.info
    if as_json:
        print_json(found)
    elif isinstance(opened, Index):
        print_index_info(found, check)
    else:
        print_exported_info(found)
