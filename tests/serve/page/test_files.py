"""The files of the playground: all of them are listed, small, linked correctly, and served with a strict policy."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path

import pytest

from bertree.report.layers import bundle
from bertree.serve.routes.page import FILES, POLICY, SHARED, STATIC
from bertree.serve.served import Registry
from bertree.serve.settings import ApiKeys, RequestSettings
from tests.support import asking
from tests.support.asking import Asker
from tests.support.processes import PATIENCE

SCRIPTS = [name for name in FILES if name.endswith(".js")]
MOST_BYTES = 200_000
IMPORT = re.compile(r'^import\s+(?:(\w+)|\* as \w+|\{([^}]*)\})\s+from "(\.[^"]+)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|const|class) (\w+)", re.MULTILINE)
# What turns text into markup or code, or leaves this server.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|setAttribute\(\"style\""
    r"|https?://(?!www\.w3\.org/)|//cdn|XMLHttpRequest|WebSocket|sendBeacon|document\.cookie"
)


@pytest.fixture(scope="module")
def empty_server() -> Iterator[Asker]:
    """A server without models, with a key."""
    with asking.with_registry(Registry(), RequestSettings(keys=ApiKeys(("secret",))), threads=1) as started:
        yield started


def test_the_list_is_what_is_there_and_small() -> None:
    own, shared = (sorted(path for path in Path(str(f)).rglob("*") if path.is_file()) for f in (STATIC, SHARED))
    assert sorted([*own, *shared]) == sorted(map(Path, map(str, FILES.values())))
    assert sum(path.stat().st_size for path in [*own, *shared]) <= MOST_BYTES


@pytest.mark.parametrize("name", SCRIPTS)
def test_imports_name_what_other_scripts_export(name: str) -> None:
    text = FILES[name].read_text()
    assert text.count("\nimport ") + text.startswith("import ") == len(IMPORT.findall(text)), "an import on its own"
    for default, names, target in IMPORT.findall(text):
        exported = FILES[normpath(Path(name).parent / target)].read_text()
        assert not default or "export default" in exported
        assert {part.split()[0] for part in names.split(",") if part.strip()} <= set(EXPORT.findall(exported)), target


def test_every_export_is_used() -> None:
    texts = [FILES[name].read_text() for name in SCRIPTS]
    imports = [names.split(",") for text in texts for _, names, _ in IMPORT.findall(text)]
    used = {part.split()[0] for names in imports for part in names if part.strip()}
    whole = {"read", "link", "write"}  # of state.js, which is imported as a whole
    assert {match for text in texts for match in EXPORT.findall(text)} == used | whole


@pytest.mark.parametrize("name", FILES)
def test_no_file_makes_markup_of_text_or_asks_another_server(name: str) -> None:
    text = FILES[name].read_text()
    assert not FORBIDDEN.findall(text)
    assert name.endswith(".css") or all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to check the scripts with")
def test_scripts_are_valid_modules() -> None:
    checks = 'import { readFileSync } from "node:fs"; import vm from "node:vm";' + "".join(
        f"new vm.SourceTextModule(readFileSync({str(FILES[name])!r}, 'utf8'), {{ identifier: {name!r} }});"
        for name in SCRIPTS
    )
    command = ["node", "--experimental-vm-modules", "--no-warnings", "--input-type=module", "-e", checks]
    subprocess.run(command, check=True, timeout=PATIENCE)
    bundled = f"new (require('node:vm').Script)({json.dumps(bundle())})"  # in one scope, no name is declared twice
    subprocess.run(["node", "-e", bundled], check=True, timeout=PATIENCE)


def test_files_are_served_with_the_policy_and_a_version(empty_server: Asker) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/docs", "text/html"),
        ("/page/app.js", "text/javascript"),
        ("/favicon.ico", "image/svg+xml"),
    ):
        answer = empty_server.get(path)  # although the server has a key
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = empty_server.get(path, if_none_match=f'"other", W/{answer.headers["etag"]}')
        assert (again.status, again.body) == (304, b"")
        assert empty_server.get(path, if_none_match='"other"').status == 200
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/page.py", "/page/../page.py", "/page/%2e%2e/page.py", "/page//etc/passwd", "/page/app.js/"],
)
def test_nothing_else_is_served(path: str, empty_server: Asker) -> None:
    assert empty_server.get(path).status == 404


def test_what_the_page_asks_for_needs_the_key(empty_server: Asker) -> None:
    assert empty_server.get("/v1/models").status == 401
    assert empty_server.get("/v1/models", authorization="Bearer secret").status == 200
