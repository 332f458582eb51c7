"""The verbs that read an index: `index query`, `evaluate`, `mine`, `info`, `export`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import print_json
from bertree.cli.index_options import (
    CandidatesOption,
    FolderOrAddressArgument,
    IndexArgument,
    LabelOption,
    ModelOption,
    WhereOption,
    filters,
    load_encoder,
    open_at,
)
from bertree.cli.options import DeviceOption, JsonOption, PrecisionOption, SchemaOption, TableOption
from bertree.console import bar, note
from bertree.errors import Interrupted, UserError, counted

QuestionsOption = Annotated[
    Path, typer.Option("--questions", help="Table or .jsonl of questions and the ids of their documents.")
]
QuestionOption = Annotated[str, typer.Option(help="Column with the question.")]
DocumentOption = Annotated[str, typer.Option(help="Column with the id of the document, or a list of ids.")]


def query(
    index: FolderOrAddressArgument,
    question: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Passages to show.")] = 5,
    mode: Annotated[
        str | None,
        typer.Option(help="hybrid, vectors (by meaning) or words (BM25).", show_default="hybrid, if it has words"),
    ] = None,
    where: WhereOption = None,
    model: ModelOption = None,
    rerank: Annotated[
        str | None,
        typer.Option("--rerank", help="Scores the best passages again: a model of pairs, or of vectors (by tokens)."),
    ] = None,
    candidates: CandidatesOption = None,
    label: LabelOption = None,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Query an index: the best passages for a question, by words and by meaning.

    A hit shows its score, its rank by each, and, between stars, the words that it shares with the question.

    [dim]bertree index query my-index "Who hunts the white whale?" -k 3
    bertree index query my-index "error E1427" --mode words
    bertree index query my-index "a proposal of marriage" --where book=Emma --json
    bertree index query my-index "Is it raining?" --rerank default
    bertree index query postgresql://user@host/database "Is it raining?"[/dim]
    """
    from bertree.cli.render.index import print_hits
    from bertree.inference.load import choose_device, load
    from bertree.search.ranking import choose_mode
    from bertree.search.rerank import CANDIDATES

    _check_reranking(rerank, candidates, label)
    with open_at(index, None, schema, table) as unloaded:
        name, passages, state = unloaded.name, len(unloaded), unloaded.state
        chosen_mode = choose_mode(mode, unloaded.has_words, name)
        chosen = "" if chosen_mode == "words" else model or unloaded.model_path
        if mode is None and chosen_mode == "vectors":
            note(f"{name}: has no word index, so it is searched by meaning only; `bertree index upgrade` makes one")
    if not getattr(state, "complete", True):
        note(f"{name}: is not finished; what is there is searched (run `bertree index build` again to go on)")
    encoder = load_encoder(chosen, device, precision) if chosen else None
    with open_at(index, encoder, schema, table) as opened:
        reranker = load(rerank, device=choose_device(device)) if rerank else None
        hits = opened.search(
            question,
            k,
            mode=chosen_mode,
            where=filters(where or []),
            rerank=reranker,
            candidates=candidates or CANDIDATES,
            label=label,
        )
    if rerank and hits:
        rest = f"; after the first {candidates}, those of the search" if len(hits) > (candidates or CANDIDATES) else ""
        note(f"the scores are those of {rerank}{rest}")
    if as_json:
        print_json([hit.json() for hit in hits])
        return
    if not hits:
        note("nothing was found" if passages else f"{name}: is empty")
    print_hits(hits)


def evaluate(
    index: FolderOrAddressArgument,
    questions: QuestionsOption,
    question: QuestionOption = "question",
    document: DocumentOption = "document",
    model: ModelOption = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A model that scores again, as a further mode.")
    ] = None,
    candidates: CandidatesOption = None,
    label: LabelOption = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose the weight of words on every second question, and keep it.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the figures and a page of failures.")] = None,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Evaluate an index on questions: recall, MRR and nDCG of words, vectors and both, with 95 % intervals.

    Ranks count documents: a document has the rank of its best passage.

    [dim]bertree index evaluate my-index --questions questions.jsonl --out scores
    bertree index evaluate my-index --questions questions.csv --document id --tune[/dim]
    """
    from bertree.cli.render.index import print_evaluation
    from bertree.inference.load import choose_device, load
    from bertree.search.questions import evaluate_search, read_questions
    from bertree.search.rerank import CANDIDATES

    _check_reranking(rerank, candidates, label)
    asked = read_questions(questions, question, document)  # raises for a wrong file before a model is loaded
    with open_at(index, None, schema, table) as unloaded:
        chosen = model or unloaded.model_path
    reranker = load(rerank, device=choose_device(device)) if rerank else None
    with open_at(index, load_encoder(chosen, device, precision), schema, table) as opened:
        most = candidates or CANDIDATES
        result = evaluate_search(opened, asked, rerank=reranker, candidates=most, label=label, tune=tune, out=out)
    print_json(result.json()) if as_json else print_evaluation(result)
    if out is not None and not as_json:
        print(out / "report.html")


def _check_reranking(rerank: str | None, candidates: int | None, label: str | None) -> None:
    """Refuse options of a second model where there is none."""
    for option, value in (("--label", label), ("--candidates", candidates)):
        if value is not None and rerank is None:
            raise UserError(f"{option}: is for a second model, which --rerank names")


def mine(
    index: FolderOrAddressArgument,
    questions: QuestionsOption,
    out: Annotated[Path, typer.Option("--out", help="The .jsonl file to write.")],
    question: QuestionOption = "question",
    document: DocumentOption = "document",
    negatives: Annotated[int, typer.Option(min=1, help="Hard negatives of a question.")] = 5,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the best ones, which may be answers too.")] = 0,
    mode: Annotated[str | None, typer.Option(help="How they are found.", show_default="hybrid")] = None,
    model: ModelOption = None,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Mine hard negatives: for each question its answer, and the best passages of other documents.

    [dim]bertree index mine my-index --questions questions.jsonl --out mined.jsonl
    bertree embeddings train default --data mined.jsonl --loss cross --out my-reranker
    bertree embeddings train default --data mined.jsonl --teacher my-reranker/model --out my-student[/dim]
    """
    from bertree.search.questions import mine_negatives

    with open_at(index, None, schema, table) as unloaded:
        chosen = model or unloaded.model_path
    columns = {"question": question, "document": document}
    with open_at(index, load_encoder(chosen, device, precision), schema, table) as opened:
        mined = mine_negatives(opened, questions, out, negatives=negatives, skip=skip, mode=mode, **columns)
    if mined.missing:
        note(f"{counted(mined.missing, 'question')} without a document in the index")
    print_json(vars(mined)) if as_json else print(f"{out}: {counted(mined.rows, 'row')}")


def info(
    index: FolderOrAddressArgument,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare it with its checksum.")] = False,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    as_json: JsonOption = False,
) -> None:
    """Describe an index: kind and why, documents, model, size, sources.

    [dim]bertree index info my-index --json[/dim]
    """
    from bertree.cli.render.index import print_exported_info, print_index_info
    from bertree.search.index import Index

    with open_at(index, None, schema, table) as opened:
        if isinstance(opened, Index):
            if check:
                opened.verify()
        elif check:
            raise UserError("--check: is for an index on disk; a database checks its own pages")
        contents = opened.info
    if as_json:
        print_json(contents)
    elif isinstance(opened, Index):
        print_index_info(contents, check)
    else:
        print_exported_info(contents)


def export(
    folder: IndexArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ADDRESS",
            help="postgresql://user@host/database; the password from ~/.pgpass or PGPASSWORD.",
            show_default=False,
        ),
    ],
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    replace: Annotated[
        bool, typer.Option("--replace", help="Write all of it anew, also over an index of another model.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an index into a PostgreSQL database with pgvector; the next export writes only what has changed.

    One transaction: whoever queries the database sees the old index or the new one. Needs the
    extra 'postgres'.

    [dim]bertree index export my-index --to postgresql://user@host/database
    bertree index query postgresql://user@host/database "Who hunts the white whale?"[/dim]
    """
    from bertree.cli.render.index import print_exported
    from bertree.search.index import Index

    with Index.open(folder) as index:
        if not index.state.complete:
            note(f"{folder}: is not finished; what is there is exported (run `bertree index build` again to go on)")
        try:
            with bar("connecting") as progress:

                def watch(doing: str, count: int, of: int | None) -> None:
                    progress.relabel(doing, of)
                    progress.move_to(count)

                exported = index.export(to, schema=schema, table=table, replace=replace, watch=watch)
        except KeyboardInterrupt:
            raise Interrupted(f"{folder}: interrupted; the database is as it was") from None
    if not exported.graph:
        note("these vectors have too many numbers for an HNSW index of pgvector, so queries compare all of them")
    print_json(vars(exported)) if as_json else print_exported(exported)
