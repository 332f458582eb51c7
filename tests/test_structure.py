"""The structure of bertree: packages (top-level folders and modules), layers, and which imports are allowed.

The layers are not written down: they follow from the imports. A package is one layer above the highest package it
imports, which is possible only if there is no circle of imports.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "bertree"
ARCHITECTURE = SOURCE.parents[1] / "docs" / "architecture.md"
MOST_PACKAGES, MOST_LAYERS, MOST_ROOT_MODULES, MOST_FILES = 33, 12, 8, 17
# Stricter than the layers: what a package may import beside the standard library.
ONLY = {
    "model": {"torch", "triton", "bertree.batch", "bertree.errors", "bertree.keyed_random", "bertree.model"},
    "text": {
        *("tokenizers", "numpy", "sentencex", "pyarrow", "zstandard"),
        *("bertree.console", "bertree.errors", "bertree.files", "bertree.result_table", "bertree.text"),
    },
}
# Packages that nothing below may import.
TOP = {"cli", "serve", "__main__"}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, wherever they stand. Statements are visited, not what is in an expression."""
    statements: list[ast.AST] = [ast.parse(path.read_text())]
    for statement in statements:
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(statement, name, ())
            statements += inner if isinstance(inner, list) else ()  # a lambda has a body too
    return [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def imports(path: Path) -> set[str]:
    modules = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif node.module:
            assert node.level == 0, f"{path}: relative import"
            modules.add(node.module)
            if node.module == "bertree":
                modules |= {f"bertree.{alias.name}" for alias in node.names}
    return modules


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def package_graph() -> dict[str, dict[str, str]]:
    """Package -> packages it imports -> one of the files that does."""
    files = list(SOURCE.rglob("*.py"))
    graph: dict[str, dict[str, str]] = defaultdict(dict)
    for path in files:
        graph[package_of(path)]
        for module in imports(path):
            parts = module.split(".")
            if parts[0] != "bertree" or package_of(path) == "__init__":
                continue
            other = parts[1] if len(parts) > 1 else "__init__"
            if not ((SOURCE / other).is_dir() or (SOURCE / f"{other}.py").is_file()):
                other = "__init__"
            if other != package_of(path):
                graph[package_of(path)][other] = str(path.relative_to(SOURCE))
    return graph


def layers() -> dict[str, int]:
    """The layer of each package."""
    graph = package_graph()
    level: dict[str, int] = {}

    def layer(package: str, above: tuple[str, ...] = ()) -> int:
        assert package not in above, f"imports run in a circle: {' -> '.join((*above, package))} ({graph[above[-1]]})"
        if package not in level:
            level[package] = 1 + max((layer(other, (*above, package)) for other in graph[package]), default=0)
        return level[package]

    return {package: layer(package) for package in graph}


def test_imports_only_point_down() -> None:
    graph, level = package_graph(), layers()
    assert max(level.values()) <= MOST_LAYERS
    assert len(graph) <= MOST_PACKAGES
    for package, others in graph.items():
        for other in TOP & set(others) - {package}:
            assert package in TOP, f"{others[other]} imports {other}, which nothing below may import"


def test_the_layers_in_the_documentation_are_those_of_the_imports() -> None:
    actual = {package: layer for package, layer in layers().items() if package != "__init__"}
    rows = {layer: sorted(package for package in actual if actual[package] == layer) for layer in set(actual.values())}
    lines = [
        f"{layer:2}  {''.join(f'{package:14}' for package in rows[layer])}".rstrip() for layer in sorted(rows)[::-1]
    ]
    plan = "\n".join(lines)
    page = ARCHITECTURE.read_text()
    assert f"```text\n{plan}\n```" in page, f"docs/architecture.md: the plan is now\n{plan}"
    for package in actual:
        assert f"\n| `{package}` |" in page, f"docs/architecture.md does not say what {package} is for"


def test_the_documentation_names_files_that_exist() -> None:
    page = ARCHITECTURE.read_text()
    for name in re.findall(r"`([\w/]+\.py)`", page):
        assert (SOURCE / name).is_file() or (SOURCE.parents[1] / name).is_file(), f"docs/architecture.md: {name}"


def test_no_module_imports_itself_in_a_circle() -> None:
    modules = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(("bertree", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        modules[name] = path
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in import_statements(path) if name != "bertree" else []:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    graph[name].add(target if target in modules else node.module)
        graph[name] = {target for target in graph[name] if target in modules and target != name}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"circle: {' -> '.join((*above[above.index(name) :], name))}"
        if name not in done:
            for target in graph[name]:
                visit(target, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_folder_is_crowded() -> None:
    root = list(SOURCE.glob("*.py"))
    assert len(root) <= MOST_ROOT_MODULES, "a new module belongs into a package"
    for folder in {path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder.name}: {len(files)} files; which of them belong together?"


def test_some_packages_import_little() -> None:
    for name, allowed in ONLY.items():
        for path in (SOURCE / name).rglob("*.py"):
            for module in imports(path):
                allowed_module = any(module == a or module.startswith(a + ".") for a in allowed)
                assert allowed_module or module.split(".")[0] in sys.stdlib_module_names, (
                    f"{path.name} imports {module}"
                )


def test_no_pickle_and_no_remote_code() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in imports(path)
        assert "torch.load(" not in text
        assert "trust_remote_code" not in text
