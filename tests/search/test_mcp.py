"""`bertree mcp`: search as a tool, asked by the client of the package mcp."""

import io
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.errors import UserError
from bertree.search.index import Index
from bertree.search.mcp.protocol import LONGEST, Tool, serve_tools
from bertree.search.mcp.tools import IndexTools, make_tools, open_indexes
from bertree.search.searcher import Searcher
from tests.support.command import Command
from tests.support.postgres import PostgresServer
from tests.support.search_samples import SHIPS
from tests.support.standin import Words

BERTREE = [sys.executable, "-m", "bertree"]
LOG = " ".join(f"On day {n} the log says calm." for n in range(60))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Searcher]:
    folder = tmp_path_factory.mktemp("mcp")
    ships = Index.build(Words(), [*SHIPS, {"id": "log", "text": LOG}], folder / "ships", chunk=20, overlap=5)
    other = Index.build(Words(), [{"id": "z", "text": "Something else."}], folder / "other")
    return {"ships": ships, "other": other}


def ask(indexes: Mapping[str, Searcher], *messages: Any) -> list[Any]:
    """What is answered to messages: objects, or lines as they are."""
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in messages]
    answers = io.BytesIO()
    serve_tools(make_tools(indexes), "Search.", io.BytesIO(b"".join(lines)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


def call(indexes: Mapping[str, Searcher], name: str, **arguments: Any) -> Any:
    (answer,) = ask(indexes, request("tools/call", {"name": name, "arguments": arguments}))
    result = answer["result"]
    if result["isError"]:
        raise UserError(result["content"][0]["text"])
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return result["structuredContent"]


def test_search_returns_the_hits_of_the_index(indexes: Mapping[str, Searcher]) -> None:
    hits = call(indexes, "search", query="The brig in the bay", k=2)["hits"]
    expected = indexes["ships"].search("The brig in the bay", 2)
    assert hits == [json.loads(json.dumps(hit.json())) for hit in expected]
    assert [hit["document"] for hit in call(indexes, "search", query="bay", where={"year": 1902})["hits"]] == ["c"]
    assert [hit["document"] for hit in call(indexes, "search", query="bay", index="other")["hits"]] == ["z"]


@pytest.mark.slow
def test_hits_are_reranked_by_the_tokens_of_the_index_s_model(tmp_path: Path) -> None:
    model = bertree.load("default")
    with Index.build(model, SHIPS, tmp_path / "index") as index:
        hits = call({"index": index}, "search", query="two ships", rerank=True)["hits"]
        expected = index.search("two ships", rerank=model)
    assert [(hit["document"], hit["score"]) for hit in hits] == [(hit.document, hit.score) for hit in expected]


def test_read_joins_passages_that_overlap(indexes: Mapping[str, Searcher]) -> None:
    assert len(indexes["ships"].document("log")) > 10
    whole = call(indexes, "read", document="log", characters=20_000)
    assert (whole["text"].split(), whole["start"], whole["end"]) == (LOG.split(), 0, len(LOG))
    assert whole["next_start"] is None
    (hit,) = call(indexes, "search", query="day 30", k=1, where={"id": "log"})["hits"]
    around = call(indexes, "read", document="log", start=hit["start"], before=2, characters=400)
    assert around["start"] < hit["start"]
    assert hit["text"] in around["text"]
    parts, start = [], 0
    while start is not None:
        part = call(indexes, "read", document="log", start=start, characters=300)
        parts.append((part["start"], part["end"]))
        start = part["next_start"]
    assert len(parts) > 3
    assert parts[-1][1] == len(LOG)
    assert all(later[0] <= earlier[1] + 1 for earlier, later in pairwise(parts)), "nothing is left out"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", {}, "query: is missing"),
        ("search", {"query": " "}, "is empty"),
        ("search", {"query": 5}, "query: must be a text"),
        ("search", {"query": "x" * 10_001}, "at most 10,000"),
        ("search", {"query": "x", "k": 0}, "k: must be from 1 to 50"),
        ("search", {"query": "x", "k": True}, "k: must be a whole number"),
        ("search", {"query": "x", "k": 2.5}, "k: must be a whole number"),
        ("search", {"query": "x", "where": "book"}, "where: must be an object"),
        ("search", {"query": "x", "where": {"boook": "Sea"}}, "did you mean 'book'"),
        ("search", {"query": "x", "rerank": "default"}, "rerank: must be true or false"),
        ("search", {"query": "x", "index": "nothing"}, "index 'nothing': there is none"),
        ("search", {"question": "x"}, "question: there is no such argument"),
        ("read", {"document": "nobody"}, "document 'nobody': there is none"),
        ("read", {"document": "log", "start": -1}, "start: must be from 0"),
        ("read", {"document": "log", "characters": 10**9}, "characters: must be from 1"),
    ],
)
def test_bad_arguments_are_errors_of_the_tool(
    indexes: Mapping[str, Searcher], name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        call(indexes, name, **arguments)
    assert "\n" not in str(raised.value)


def test_bad_messages_are_refused_and_the_next_is_answered(indexes: Mapping[str, Searcher]) -> None:
    bad: list[tuple[Any, int]] = [
        (b"{\n", -32700),
        (b"\xff\xfe\n", -32700),
        (b"[" * 100_000 + b"\n", -32700),
        (b'"' + b"x" * (2 * LONGEST + 10) + b'"\n', -32700),
        ([request("ping")], -32600),
        ({"id": 1, "method": "ping"}, -32600),
        (request("ping", id=[1]), -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600),
        (request("resources/list"), -32601),
        (request("server/discover"), -32601),
        (request("tools/call", [1]), -32602),
        (request("tools/call", {"name": "rm"}), -32602),
        (request("tools/call", {"name": ["search"]}), -32602),
        (request("tools/call", {"name": "search", "arguments": 5}), -32602),
    ]
    for message, code in bad:
        refused, pong = ask(indexes, message, request("ping", id="next"))
        assert refused["error"]["code"] == code, message
        assert pong == {"jsonrpc": "2.0", "id": "next", "result": {}}
    silent = [
        b"\n",
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 7, "result": {}},
    ]
    assert ask(indexes, *silent) == []


@pytest.mark.parametrize(("asked", "arguments"), [("2025-06-18", "2025-06-18"), ("2031-01-01", "2025-11-25")])
def test_the_protocol_version_is_the_clients_if_it_is_known(
    indexes: Mapping[str, Searcher], asked: object, arguments: str
) -> None:
    (answer,) = ask(indexes, request("initialize", {"protocolVersion": asked}))
    assert answer["result"]["protocolVersion"] == arguments


def test_a_mistake_of_ours_does_not_end_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(arguments: Any) -> Any:
        raise RuntimeError("secret path")

    answers = io.BytesIO()
    line = json.dumps(request("tools/call", {"name": "broken"})).encode() + b"\n"
    serve_tools([Tool("broken", "", {}, broken)], "", io.BytesIO(line + line), answers)
    for answer in answers.getvalue().splitlines():
        assert json.loads(answer)["result"]["isError"]
        assert b"secret" not in answer
    assert "secret path" in capsys.readouterr().err


def test_one_index_needs_no_name(indexes: Mapping[str, Searcher]) -> None:
    for names, expected in ((["ships"], False), (["ships", "other"], True)):
        tools = make_tools({name: indexes[name] for name in names})
        assert [tool.name for tool in tools] == ["search", "read"]
        assert ["index" in tool.schema["properties"] for tool in tools] == [expected, expected]
    assert IndexTools({"ships": indexes["ships"]}).describe().startswith("ships (5 documents with the metadata book")


@pytest.fixture
def built(small_folder: Path, tmp_path: Path, command: Command) -> Path:
    (tmp_path / "docs.jsonl").write_text(
        '{"id": "a", "text": "The brig lay at anchor."}\n{"id": "b", "text": "Tea."}\n'
    )
    folder = tmp_path / "notes"
    command.well("index", "build", small_folder, tmp_path / "docs.jsonl", "--device", "cpu", "--out", folder)
    return folder


def test_the_real_client_over_standard_output_which_has_nothing_but_the_protocol(
    built: Path, database: str, tmp_path: Path
) -> None:
    mcp = pytest.importorskip("mcp")
    import anyio

    Index.open(built).export(database, table="exported")
    command = [*BERTREE, "mcp", str(built), database, "--table", "exported", "--device", "cpu"]
    output, log = tmp_path / "output", tmp_path / "log"
    copied = f"{shlex.join(command)} | tee {shlex.quote(str(output))}"

    async def session() -> None:
        own = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
        server = mcp.StdioServerParameters(command="sh", args=["-c", copied], env=own)
        async with mcp.Client(mcp.stdio_client(server, errlog=errors)) as client:
            assert client.server_info.name == "bertree"
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"search", "read"}
            for index in ("notes", "exported"):
                question = {"query": "The brig lay at anchor.", "k": 1, "index": index}
                answer = await client.call_tool("search", question)
                (hit,) = answer.structured_content["hits"]
                assert (hit["document"], hit["text"]) == ("a", "The brig lay at anchor.")
                read = await client.call_tool("read", {"document": "a", "index": index})
                assert read.structured_content["text"] == "The brig lay at anchor."
            wrong = await client.call_tool("search", {"query": ""})
            assert wrong.is_error
            with pytest.raises(mcp.MCPError, match="there is no tool"):
                await client.call_tool("drop", {})

    with log.open("w") as errors:
        anyio.run(session)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(answers) > 5
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert "notes, exported ready" in log.read_text()


def test_a_wrong_index_is_one_line(
    tmp_path: Path, built: Path, postgres_server: PostgresServer, command: Command
) -> None:
    for folders, model, message in (
        ([str(tmp_path / "nothing")], None, "no such folder"),
        ([str(built), str(built)], None, "two indexes have this name"),
        ([postgres_server.address("postgres")], None, "there is no index here"),
        ([str(built)], "default", "not with this model"),
    ):
        with pytest.raises(UserError, match=message), ExitStack() as stack:
            open_indexes(folders, bertree.load, model, stack, schema="public", table="bertree")
    result = command("mcp", tmp_path / "nothing")
    assert (result.code, result.out, len(result.lines)) == (2, "", 1)
