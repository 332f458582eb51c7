"""The pages of functions and classes, made from the code: signatures, docstrings, and the comments beside fields."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import bertree
from docs.reference import prose, row

PUBLIC = {name: getattr(bertree, name) for name in bertree.__all__ if name != "__version__"}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}
FUNCTIONS = [name for name in PUBLIC if name not in CLASSES]


def functions_page() -> str:
    """Every public function of `bertree`."""
    lines = [
        "# Functions",
        "",
        "Every function of `bertree` with its signature and docstring. [Python](python.md) is the guide; "
        "[the classes](classes.md) are what functions take and return.",
    ]
    for name in FUNCTIONS:
        lines += ["", f"## bertree.{name}", "", *documented(f"bertree.{name}", inspect.unwrap(getattr(bertree, name)))]
    return "\n".join(lines) + "\n"


def classes_page() -> str:
    """Every public class of `bertree`, and the values that functions and methods return."""
    members = [member for kind in CLASSES.values() for _, member in public_members(kind) if inspect.isfunction(member)]
    results: dict[str, type] = {}
    for function in [*(inspect.unwrap(getattr(bertree, name)) for name in FUNCTIONS), *members]:
        results |= returned(function)
    lines = [
        "# Classes",
        "",
        "Every class of `bertree` with its methods, and the values that [functions](functions.md) and methods return. "
        "[Python](python.md) is the guide.",
        "",
        "## Public classes",
    ]
    for name, kind in CLASSES.items():
        lines += class_lines(f"bertree.{name}", kind)
    lines += ["", "## Values", "", "What functions and methods return. These names are not part of `bertree` itself."]
    for name, kind in sorted(results.items()):
        lines += class_lines(name, kind) if kind not in CLASSES.values() else []
    return "\n".join(lines) + "\n"


def returned(function: Callable[..., Any]) -> dict[str, type]:
    """The classes of bertree that the annotation of the result names."""
    names = vars(inspect.getmodule(function)) | CLASSES
    words = re.findall(r"\w+", ast.unparse(definition(function).returns or ast.Constant(None)))
    kinds = {word: names[word] for word in words if isinstance(names.get(word), type)}
    return {word: kind for word, kind in kinds.items() if kind.__module__.startswith("bertree.")}


def definition(function: Callable[..., Any]) -> ast.FunctionDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def class_lines(title: str, kind: type) -> Iterator[str]:
    yield f"\n### {title}\n"
    yield from docstring(kind)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        comments = field_comments(kind)
        meanings: dict[str, str] = (
            {field.name: field.metadata.get("meaning", "") for field in fields(kind)}
            if is_dataclass(kind)
            else dict.fromkeys(kind._fields, "")
        )
        if names := [name for name in meanings if not name.startswith("_")]:
            yield f"\n{row('field', 'type', 'meaning')}\n{row(*['---'] * 3)}"
        for name in names:
            yield row(f"`{name}`", f"`{comments[name][0]}`", prose(meanings[name] or comments[name][1]))
    short = title.removeprefix("bertree.")
    for name, member in public_members(kind):
        yield f"\n#### {short}.{name}\n"
        yield from documented(f"{short}.{name}", member) if inspect.isfunction(member) else docstring(member)


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that bertree declares, by name."""
    for attribute in inspect.classify_class_attrs(kind):
        member = attribute.object
        member = getattr(member, "__func__", getattr(member, "func", member))
        if attribute.name.startswith("_") or not attribute.defining_class.__module__.startswith("bertree"):
            continue
        if isinstance(member, property) or inspect.isfunction(member):
            yield attribute.name, inspect.unwrap(member) if inspect.isfunction(member) else member


def field_comments(kind: type) -> dict[str, tuple[str, str]]:
    """The type of each field as it is written, and the comment beside or above it."""
    result: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("bertree"):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {each.start[0]: each.string.lstrip("# ") for each in tokens if each.type == tokenize.COMMENT}
        lines = source.splitlines()
        for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign):
                first, comment = node.lineno - 1, comments.get(node.end_lineno or 0, "")
                while not comment.strip() or first in comments:
                    if not lines[first - 1].lstrip().startswith("#"):
                        break
                    comment, first = f"{comments[first]} {comment}", first - 1
                result[ast.unparse(node.target)] = unquoted(node.annotation), comment.strip()
    return result


def unquoted(annotation: ast.expr) -> str:
    return re.sub(r"^'(.*)'$", r"\1", ast.unparse(annotation))


def documented(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """A signature as its source has it, and the docstring."""
    node = definition(function)
    arguments, result = node.args, f" -> {unquoted(node.returns)}" if node.returns else ""
    positional = [argument for argument in arguments.args if argument.arg not in ("self", "cls")]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parts = [*map(parameter, positional, [*missing, *arguments.defaults])]
    parts += [f"*{parameter(arguments.vararg)}"] if arguments.vararg else ["*"] if arguments.kwonlyargs else []
    parts += map(parameter, arguments.kwonlyargs, arguments.kw_defaults)
    parts += [f"**{parameter(arguments.kwarg)}"] if arguments.kwarg else []
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    yield f"```python\n{line}\n```\n"
    yield from docstring(function)


def parameter(argument: ast.arg, default: ast.expr | None = None) -> str:
    text = argument.arg + (f": {unquoted(argument.annotation)}" if argument.annotation else "")
    return text if default is None else f"{text} = {ast.unparse(default)}".replace("'", '"')


def docstring(value: Any) -> Iterator[str]:
    """A docstring as Markdown: its examples are blocks of code."""
    for paragraph in (inspect.getdoc(value) or "").split("\n\n"):
        example = [line[4:] for line in paragraph.splitlines() if line.startswith((">>> ", "... "))]
        yield "```python\n" + "\n".join(example) + "\n```\n" if example else prose(paragraph) + "\n"
