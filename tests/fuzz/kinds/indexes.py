"""Indexes: the SQLite database with its state, the files of vectors, the FAISS graph."""

import json
import sqlite3
from pathlib import Path
from random import Random

from bertree.search.index_state import seal
from tests.fuzz.case import Case, Change, Kind
from tests.fuzz.mutations import raw, trees, values
from tests.fuzz.running import Result, Runner

COLUMNS = {
    "state": ("value",),
    "documents": ("number", "id", "source", "digest", "metadata", "characters", "chunks"),
    "chunks": ("number", "document", "first", "last", "text"),
    "labels": ("key", "value", "document"),
    "dead": ("number",),
}
STATEMENTS = (
    *("drop table chunks", "drop table state", "delete from state", "delete from chunks", "delete from documents"),
    *("insert into dead values (1)", "insert into dead values (-1)", "delete from chunks where number = 1"),
    *("update chunks set text = x'ff00'", "update documents set metadata = '[]'", "delete from labels"),
    f"update documents set metadata = '{values.nested(100_000)}'",
    *("create view x as select 1", "alter table chunks rename to chunkz", "update chunks set document = 7"),
    *("update documents set metadata = '{\"a\": NaN}'", "update documents set id = number", "pragma user_version = 7"),
    "create trigger t after insert on documents begin delete from chunks; end",
)
QUERY = "the red boat"


def _sql(path: Path, statement: str, arguments: tuple[object, ...] = ()) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    try:
        base.execute(statement, arguments)
    finally:
        base.close()


def _state(file: str, random: Random) -> Change:
    """Change the state in the database."""
    seed = random.random()

    def make(path: Path) -> None:
        draw = Random(seed)
        base = sqlite3.connect(path)
        (text,) = base.execute("select value from state").fetchone()
        base.close()
        tree = json.loads(text)
        trees.mutate(tree, draw, ())
        changed = draw.choice(values.JSON_DOCUMENTS).decode("latin-1") if draw.random() < 0.1 else _text(tree, draw)
        _sql(path, "update state set value = ?", (changed,))

    return Change(file, f"one value of the state ({seed})", make)


def _text(tree: object, random: Random) -> str:
    """Return a state as text; mostly with its checksum computed again, so that more than the checksum is tested."""
    return seal(tree) if isinstance(tree, dict) and random.random() < 0.8 else json.dumps(tree)


def _value(file: str, random: Random) -> Change:
    """Change a column of some rows, or run a statement."""
    table = random.choice(list(COLUMNS))
    column, new = random.choice(COLUMNS[table]), values.value(random)
    if random.random() < 0.4:
        statement = random.choice(STATEMENTS)
        return Change(file, statement[:80], lambda path: _sql(path, statement))
    if not isinstance(new, int | float | str) or (isinstance(new, int) and abs(new) >= 2**63):
        new = random.choice((b"\xff\x00", None, -(2**63), "[1]"))
    which = random.choice(("", " where rowid = 1", " where rowid % 2 = 0")) if table != "labels" else ""
    statement = f"update or ignore {table} set {column} = ?{which}"
    return Change(file, f"{statement}: {str(new)[:40]!r}", lambda path: _sql(path, statement, (new,)))


def _file(index: str, random: Random) -> Change:
    """Change one of the other files."""
    seed = random.random()

    def make(path: Path) -> None:
        draw = Random(seed)
        file = draw.choice(sorted(entry for entry in path.iterdir() if not entry.name.endswith(("-shm", "-wal"))))
        draw.choice((raw.bytes_change, raw.bytes_change, raw.path_change))(file.name, draw).make(file)

    return Change(index, f"one of the files ({seed})", make)


def _case(random: Random) -> Case:
    index = random.choice(("index", "index-hnsw"))
    database = f"{index}/index.sqlite"
    make = random.choice((_state, _state, _value, _file, _file))
    changes = [make(index if make is _file else database, random)]
    verb = random.choice(("query", "query", "check", "verify", "info", "add", "remove"))
    where = ["--where", "year=1"] if random.random() < 0.2 else []
    commands = {
        "query": ["index", "query", index, QUERY, "--model", "bertree", "--json", *where],
        "check": ["index", "info", index, "--check", "--json"],
        "verify": ["verify", index],
        "info": ["index", "info", index],
        "add": ["index", "add", index, "more.jsonl", "--model", "bertree"],
        "remove": ["index", "remove", index, random.choice(("d1", "d29"))],
    }
    samples = {index: index, "bertree": "bertree", "more.jsonl": "more.jsonl"}
    # A reader makes SQLite's own files, too.
    case = Case(samples, changes, commands[verb], names=("where",) if where else (), writes=(index,))
    if make is not _state:
        case.check = {"query": _noticed, "check": _unchanged, "verify": _unchanged}.get(verb)
    return case


def _unchanged(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    """Check that a database that was found undamaged holds what it held."""
    name = Path(case.changes[0].file).parts[0]
    before, after = (_dump(place / name / "index.sqlite") for place in (runner.samples, folder))
    return "" if before == after else "a changed database passes verification"


def _dump(path: Path) -> list[str]:
    base = sqlite3.connect(path)
    try:
        return list(base.iterdump())
    finally:
        base.close()


def _noticed(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    """Check that other hits than before go with damage that `--check` finds."""
    if result.out == runner.baseline(case, case.command).out:
        return ""
    info = runner.command(["index", "info", case.command[2], "--check"], folder)
    return "" if info.code == 2 else "other hits, and `index info --check` finds nothing"


KINDS = (Kind("index", "indexes: database, state, vectors, graph", _case),)
