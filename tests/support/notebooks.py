"""Run the code cells of a notebook without Jupyter.

`python -m tests.support.notebooks FILE ...` runs notebooks and writes their outputs.
"""

import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def run_cell(source: str, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a cell and yield its outputs as a notebook stores them: what it prints, and its last value."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        text = repr(value).splitlines(keepends=True)
        yield {"data": {"text/plain": text}, "execution_count": None, "metadata": {}, "output_type": "execute_result"}


def main(paths: list[str]) -> None:
    for name in paths:
        path = Path(name).resolve()
        notebook = json.loads(path.read_text(encoding="utf-8"))
        names: dict[str, Any] = {"__name__": "__main__"}
        os.chdir(path.parent)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(code, 1):
            cell["outputs"] = list(run_cell("".join(cell["source"]), names))
            cell["execution_count"] = number
            for output in cell["outputs"]:
                if "execution_count" in output:
                    output["execution_count"] = number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
