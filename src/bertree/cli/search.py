"""The verbs of an index: `index build`, `add`, `remove`, `query`, `info`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.finetune import DeviceOption, JsonOption
from bertree.cli.similar import ModelArgument, PrecisionOption

index = typer.Typer(no_args_is_help=True, help="Search documents by meaning: build an index and ask it.")

IndexArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.", show_default=False)]
DocsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DOCS",
        help="Files, folders, globs: .txt .md .jsonl .csv .tsv .parquet, each also .gz .xz .zst.",
        show_default=False,
    ),
]
TextOption = Annotated[str, typer.Option("--text", help="Column with the text; every other column is metadata.")]
IdOption = Annotated[
    str | None, typer.Option("--id", help="Column with the id.", show_default="id, or file#line where there is none")
]
BlocksOption = Annotated[
    bool, typer.Option("--blocks", help="An empty line ends a document of a text file (else a file is one).")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only documents with this in their metadata; may be repeated."),
]


@index.command("build")
def build(
    model: ModelArgument,
    docs: DocsArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder of the index.", show_default=False)],
    text: TextOption = "text",
    id: IdOption = None,
    blocks: BlocksOption = False,
    kind: Annotated[str, typer.Option(help="flat, hnsw or ivfpq; auto: by the number of vectors.")] = "auto",
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a passage.", show_default="256, or what the model reads")
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(min=0, help="Tokens repeated from the passage before.", show_default="a fifth")
    ] = None,
    language: Annotated[str, typer.Option(help="Code of the language, for splitting sentences.")] = "en",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
) -> None:
    """Make an index of documents. Interrupted, run it again to go on.

    Documents are cut into passages at the ends of sentences; a passage knows where in its document it stands.

    [dim]bertree index build default corpus/books.txt --blocks --out my-index
    bertree index build my-model mail.jsonl --text body --id message --out my-mail[/dim]
    """
    from bertree.cli.index_output import build_index

    build_index(
        model,
        docs,
        out,
        text=text,
        id=id,
        blocks=blocks,
        kind=kind,
        chunk=chunk,
        overlap=overlap,
        language=language,
        device=device,
        precision=precision,
    )


@index.command("add")
def add(
    model: ModelArgument,
    folder: IndexArgument,
    docs: DocsArgument,
    text: TextOption = "text",
    id: IdOption = None,
    blocks: BlocksOption = False,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
) -> None:
    """Add documents. One whose id is there takes its place; one that is there unchanged costs nothing.

    Killed at any moment, the index stays as it was after its last commit; the same command goes on.

    [dim]bertree index add default my-index more/*.txt[/dim]
    """
    from bertree.cli.index_output import add_documents

    add_documents(model, folder, docs, text=text, id=id, blocks=blocks, device=device, precision=precision)


@index.command("remove")
def remove(
    folder: IndexArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID ...]", help="Documents.")] = None,
    where: WhereOption = None,
) -> None:
    """Remove documents by their ids, or all that fit a filter.

    [dim]bertree index remove my-index corpus/books.txt#12
    bertree index remove my-index --where book=Emma[/dim]
    """
    from bertree.cli.index_output import remove_documents

    remove_documents(folder, ids or [], where or [])


@index.command("query")
def query(
    folder: IndexArgument,
    question: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Passages to show.")] = 5,
    where: WhereOption = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The model's folder.", show_default="where the index was made with it")
    ] = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A model fine-tuned on pairs, to read the best passages again.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Passages it reads. [default: 50]")] = None,
    label: Annotated[str | None, typer.Option(help="Its class that means yes, where the name does not say.")] = None,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Ask an index: the passages nearest to a question.

    [dim]bertree index query my-index "Who hunts the white whale?" -k 3
    bertree index query my-index "a proposal of marriage" --where book=Emma --json
    bertree index query my-index "Is it raining?" --rerank my-cross-encoder/model[/dim]
    """
    from bertree.cli.index_output import ask

    ask(
        folder,
        question,
        k,
        where=where or [],
        model=model,
        rerank=rerank,
        candidates=candidates,
        label=label,
        device=device,
        precision=precision,
        as_json=as_json,
    )


@index.command("info")
def info(
    folder: IndexArgument,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare it with its checksum.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What an index is: kind and why, documents, model, size, sources.

    [dim]bertree index info my-index --json[/dim]
    """
    from bertree.cli.index_output import show

    show(folder, check, as_json)
