"""The structure of the package: rooms (top-level folders and modules), floors, and which imports are allowed.

The floors are not written down: they follow from the imports. A room stands one floor above the highest room it
imports, which is possible only if no imports run in a circle.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "bertree"
ARCHITECTURE = SOURCE.parents[1] / "docs" / "architecture.md"
MOST_ROOMS, MOST_FLOORS, MOST_ROOT_MODULES, MOST_FILES = 30, 11, 8, 17
# Stricter than the floors: what a room may import beside the standard library.
ONLY = {
    "model": {"torch", "triton", "bertree.batch", "bertree.errors", "bertree.keyed_random", "bertree.model"},
    "text": {
        *("tokenizers", "numpy", "sentencex", "pyarrow", "zstandard"),
        *("bertree.console", "bertree.errors", "bertree.files", "bertree.text"),
    },
}
# Rooms that nothing below may import.
TOP = {"cli", "serve", "studies", "__main__"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            if node.module == "bertree":
                found |= {f"bertree.{alias.name}" for alias in node.names}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def room_graph() -> dict[str, dict[str, str]]:
    """Room -> rooms it imports -> one of the files that does."""
    files = list(SOURCE.rglob("*.py"))
    graph: dict[str, dict[str, str]] = defaultdict(dict)
    for path in files:
        graph[room_of(path)]
        for module in imports(path):
            parts = module.split(".")
            if parts[0] != "bertree" or room_of(path) == "__init__":
                continue
            other = parts[1] if len(parts) > 1 else "__init__"
            if not ((SOURCE / other).is_dir() or (SOURCE / f"{other}.py").is_file()):
                other = "__init__"
            if other != room_of(path):
                graph[room_of(path)][other] = str(path.relative_to(SOURCE))
    return graph


def floors() -> dict[str, int]:
    """The floor of each room."""
    graph = room_graph()
    found: dict[str, int] = {}

    def floor(room: str, above: tuple[str, ...] = ()) -> int:
        assert room not in above, f"imports run in a circle: {' -> '.join((*above, room))} ({graph[above[-1]]})"
        if room not in found:
            found[room] = 1 + max((floor(other, (*above, room)) for other in graph[room]), default=0)
        return found[room]

    return {room: floor(room) for room in graph}


def test_imports_only_point_down() -> None:
    graph, found = room_graph(), floors()
    assert max(found.values()) <= MOST_FLOORS
    assert len(graph) <= MOST_ROOMS
    for room, others in graph.items():
        for other in TOP & set(others) - {room}:
            assert room in TOP, f"{others[other]} imports {other}, which nothing below may import"


def test_the_plan_in_the_documentation_is_that_of_the_imports() -> None:
    found = {room: floor for room, floor in floors().items() if room != "__init__"}
    rows = {floor: sorted(room for room in found if found[room] == floor) for floor in set(found.values())}
    lines = [f"{floor:2}  {''.join(f'{room:14}' for room in rows[floor])}".rstrip() for floor in sorted(rows)[::-1]]
    plan = "\n".join(lines)
    page = ARCHITECTURE.read_text()
    assert f"```text\n{plan}\n```" in page, f"docs/architecture.md: the plan is now\n{plan}"
    for room in found:
        assert f"\n| `{room}` |" in page, f"docs/architecture.md does not say what {room} is for"


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
        for node in ast.walk(tree_of(path)) if name != "bertree" else []:
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
    assert len(root) <= MOST_ROOT_MODULES, "a new module belongs into a room"
    for folder in {path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder.name}: {len(files)} files; which of them make a room of their own?"


def test_some_rooms_are_stricter() -> None:
    for name, allowed in ONLY.items():
        for path in (SOURCE / name).rglob("*.py"):
            for module in imports(path):
                known = any(module == a or module.startswith(a + ".") for a in allowed)
                assert known or module.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


def test_no_pickle_and_no_remote_code() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in imports(path)
        assert "torch.load(" not in text
        assert "trust_remote_code" not in text
