"""Imports only point down the house: a room may use the rooms below it, never those above."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "bertree"
# From the top of the house to the bottom.
ROOMS = [
    "__main__",
    "cli",
    "cli_data",
    "cli_train",
    "cli_distill",
    "cli_index",
    "cli_sentence",
    "cli_vectors",
    "cli_tasks",
    "pipelines",
    "pipelines_data",
    "pipelines_distill",
    "pipelines_index",
    "pipelines_student",
    "pipelines_teach",
    "pipelines_compare",
    "pipelines_siamese",
    "pipelines_train",
    "pipelines_tune",
    "pipelines_job",
    "pipelines_judge",
    "pipelines_mine",
    "pipelines_vectors",
    "pipelines_predict",
    "pipelines_tasks",
    "assembly",
    "distil",
    "info",
    "api",
    "loaded",
    "inputs",
    "masks",
    "sentence",
    "interop",
    "tasks",
    "train",
    "objectives",
    "model",
    "data",
    "text",
    "recipe",
    "settings",
    "batch",
    "files",
    "errors",
]
ONLY = {  # stricter than the order: what a room may import beside the standard library
    "model": {"torch", "triton", "bertree.batch", "bertree.errors", "bertree.model"},
    "text": {
        "tokenizers",
        "numpy",
        "sentencex",
        "pyarrow",
        "zstandard",
        "bertree.errors",
        "bertree.files",
        "bertree.text",
    },
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "bertree":
                found |= {f"bertree.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_imports_point_down() -> None:
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        assert here in ROOMS, f"{here}: a new room; give it its place in this list"
        for module in imports(path):
            if module.startswith("bertree.") and room(module) in ROOMS:
                assert ROOMS.index(room(module)) >= ROOMS.index(here), f"{path.name} imports {module}, a room above it"


def test_some_rooms_are_stricter() -> None:
    import sys

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
