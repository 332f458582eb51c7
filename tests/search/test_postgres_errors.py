"""What can go wrong with a database is one line that says what to do, without a password in it."""

import socket
import sys
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from bertree.search.index import Index
from tests.support.command import Command
from tests.support.postgres import PostgresServer, run_sql
from tests.support.standin import Words

pytest.importorskip("psycopg")
SECRET = "s3cr3t%zz"


def test_no_server(index: Index) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"postgresql://me:s3cr3t@127.0.0.1:{port}/books"
    for open_it in (lambda: index.export(address), lambda: bertree.PostgresIndex(address)):
        with pytest.raises(UserError, match=r"cannot be reached .*refused") as raised:
            open_it()
        assert str(raised.value).startswith(f"postgresql://127.0.0.1:{port}/books: ")
        assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"postgresql://me:{SECRET}@localhost/books", "cannot be read; write % signs in a password as %25"),
        ("postgresql://me:s3cr3t@localhost/books?colour=red", "cannot be read"),
        ("postgresql://me:s3cr3t@[::1/books", "cannot be read"),
        ("mysql://me:s3cr3t@localhost/books", "begins with postgresql://"),
        ("me:s3cr3t", "begins with postgresql://"),
    ],
)
def test_a_wrong_address_is_not_repeated(index: Index, address: str, message: str, command: Command) -> None:
    with pytest.raises(UserError, match=message) as raised:
        index.export(address)
    assert "s3cr3t" not in str(raised.value)
    result = command("index", "export", index.path, "--to", address)
    assert (result.code, len(result.lines)) == (2, 1)
    assert "s3cr3t" not in result.err


@pytest.mark.parametrize("verb", [("add", "x.txt"), ("remove", "a"), ("export", "--to", "postgresql://h/d")])
def test_verbs_for_folders_refuse_an_address_without_showing_it(verb: tuple[str, ...], command: Command) -> None:
    result = command("index", verb[0], "postgresql://me:s3cr3t@host/books", *verb[1:])
    assert (result.code, len(result.lines)) == (2, 1)
    assert "index export" in result.err
    assert "s3cr3t" not in result.err


def test_no_such_database_or_role_or_index(index: Index, postgres_server: PostgresServer, database: str) -> None:
    with pytest.raises(UserError, match='database "nothing" does not exist'):
        index.export(postgres_server.address("nothing"))
    with pytest.raises(UserError, match='role "nobody" does not exist'):
        index.export(postgres_server.address("postgres", "nobody"))
    with pytest.raises(UserError, match="there is no index here; write one with `bertree index export`"):
        bertree.PostgresIndex(database)
    index.export(database)
    with pytest.raises(UserError, match=r"public\.other: there is no index here"):
        bertree.PostgresIndex(database, table="other")
    with pytest.raises(UserError, match=r"other\.bertree: there is no index here"):
        bertree.PostgresIndex(database, schema="other")


def test_a_server_without_pgvector(index: Index, database: str) -> None:
    hidden = f"{database}&options=-c%20extension_control_path%3D/nowhere"
    with pytest.raises(UserError, match=r"the server has no pgvector; install it there .*postgresql-18-pgvector"):
        index.export(hidden)


def test_an_old_pgvector(index: Index, database: str) -> None:
    index.export(database)
    run_sql(database, "UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with pytest.raises(UserError, match=r"has pgvector 0\.7\.4, but 0\.8 or later is needed; .*ALTER EXTENSION"):
        index.export(database)


def test_rights_that_are_missing(index: Index, postgres_server: PostgresServer, database: str) -> None:
    name = database.partition("@/")[2].partition("?")[0]
    run_sql(database, "CREATE ROLE guest LOGIN")
    try:
        guest = postgres_server.address(name, "guest")
        with pytest.raises(UserError, match="ask an administrator to run CREATE EXTENSION vector"):
            index.export(guest)
        index.export(database)
        for open_it in (lambda: index.export(guest), lambda: bertree.PostgresIndex(guest)):
            with pytest.raises(UserError, match=r"permission denied for .*; connect as its owner, ask for the right"):
                open_it()
        run_sql(database, "GRANT SELECT ON bertree, bertree_state TO guest")
        assert len(bertree.PostgresIndex(guest, Words()).search("brig")) == 4, "who may read may search"
        index.remove("a")
        with pytest.raises(UserError, match="permission denied for table bertree"):
            index.export(guest)
        with pytest.raises(UserError, match="permission denied for schema public"):
            index.export(guest, table="mine")
    finally:
        run_sql(database, "DROP OWNED BY guest")
        run_sql(database, "DROP ROLE guest")


def test_a_table_that_is_not_an_index_is_left_alone(index: Index, database: str) -> None:
    run_sql(database, "CREATE TABLE bertree (name text)")
    for replace in (False, True):
        with pytest.raises(UserError, match="there is a table that bertree did not make; give another `table`"):
            index.export(database, replace=replace)
    run_sql(database, "CREATE TABLE bertree_state (value jsonb)")
    with pytest.raises(UserError, match="has no state"):
        index.export(database)
    run_sql(database, """INSERT INTO bertree_state VALUES ('{"format": 1, "model": 5}')""")
    with pytest.raises(UserError, match="has no valid state"):
        index.export(database)
    run_sql(database, """UPDATE bertree_state SET value = '{"format": 9}'""")
    with pytest.raises(UserError, match="has format 9, newer"):
        index.export(database)
    assert run_sql(database, "SELECT count(*) FROM bertree") == [(0,)]


def test_without_psycopg_it_says_what_to_install(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("bertree.search.postgres.")]:
        if not name.endswith(".place"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"needs psycopg; install the extra 'postgres'"):
        index.export("postgresql://localhost/books")


def test_the_command_line(small_folder: Path, tmp_path: Path, database: str, command: Command) -> None:
    (tmp_path / "docs.jsonl").write_text(
        '{"id": "a", "text": "The brig lay at anchor.", "book": "Sea"}\n{"id": "b", "text": "Tea.", "book": "Home"}\n'
    )
    folder = tmp_path / "index"
    command.well("index", "build", small_folder, tmp_path / "docs.jsonl", "--device", "cpu", "--out", folder)
    result = command.well("index", "export", folder, "--to", database)
    assert result.out == "2 new; 2 passages written; 2 documents are there\n"
    assert command.well("index", "export", folder, "--to", database, "--json").json["unchanged"] == 2
    question = ("The brig lay at anchor.", "-k", "2", "--device", "cpu", "--json", "--where", "book=Sea")
    mine = command.well("index", "query", database, *question).json
    theirs = command.well("index", "query", folder, *question).json
    assert [hit["document"] for hit in mine] == [hit["document"] for hit in theirs] == ["a"]
    assert command.well("index", "info", database, "--json").json["documents"] == 2
    assert "2 documents in 2 passages" in command.well("index", "info", database).out
    assert "--check: is for an index on disk" in command("index", "info", database, "--check").err
    moved = tmp_path / "moved"
    small_folder.rename(moved)
    result = command("index", "query", database, "brig")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "give its new path with --model" in result.err
    command.well("index", "query", database, "brig", "--model", moved, "--device", "cpu")
    result = command("index", "query", database, "brig", "--model", "default", "--device", "cpu")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "not with this model" in result.err
