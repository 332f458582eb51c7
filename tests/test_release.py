"""A release: the wheel has every file of the package, a commit gives the same bytes, and messages name known extras."""

import importlib.util
import io
import re
import tarfile
import tomllib
from pathlib import Path

from bertree.version import __version__
from tests.support.documentation import ROOT

PACKAGE = ROOT / "src" / "bertree"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_holds_every_file_of_the_package() -> None:
    """`make dist` compares the built wheel with git; this finds a forgotten pattern before."""
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["bertree"]
    data = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    modules = {path for path in files if path.suffix == ".py"}
    assert sorted(files - modules - data) == []
    assert sorted(path.parent for path in modules if not (path.parent / "__init__.py").exists()) == []


def test_messages_and_pages_name_extras_that_exist() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    pages = [*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    named = {name for text in texts for name in re.findall(r"install_hint\('(\w+)'\)", text)}
    named |= {
        name for text in texts for names in re.findall(r"bertree\[([\w,]+)\]'", text) for name in names.split(",")
    }
    assert {"onnx", "serve", "elmo", "ray"} <= named <= set(extras)


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    version, date = released[0]
    assert version == __version__
    assert f"version: {version}\ndate-released: {date}\n" in citation


def test_a_source_distribution_has_the_same_bytes_whoever_builds_it_when() -> None:
    dist = load_script("dist")
    builds = []
    for time, user in ((1, "me"), (2, "you")):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for name in ("b", "a") if time == 1 else ("a", "b"):
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uname, member.mode = 1, time, user, 0o600 + time
                tar.addfile(member, io.BytesIO(name.encode()))
        builds.append(dist.normalized(archive.getvalue(), 1_700_000_000))
    assert builds[0] == builds[1]
    with tarfile.open(fileobj=io.BytesIO(builds[0])) as tar:
        assert [(each.name, each.mtime, tar.extractfile(each).read()) for each in tar] == [
            ("a", 1_700_000_000, b"a"),
            ("b", 1_700_000_000, b"b"),
        ]


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, Path(ROOT, "deploy", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
