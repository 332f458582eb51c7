"""Render pages from templates: one HTML file with its style and script inside, and nothing from outside.

Every value is escaped by the templates. The only values that are markup already are charts (`report.svg`) and the
files in assets/. A content security policy allows this style and this script alone, and no connection.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.report.formats import percent
from bertree.report.svg import stylesheet
from bertree.report.tables import clip
from bertree.result_table import replace_control_characters
from bertree.run_folder import REPORT

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """Return the page that a template makes of values."""
    return _environment().get_template(f"{template}.html.j2").render(values)


def write_report(folder: Path, page: Callable[[], str]) -> None:
    """Write a run's report.html; a failure is only noted, so that it does not fail the run."""
    try:
        write_atomically(folder / REPORT, page())
    except (UserError, OSError) as error:
        note(str(error))


@cache
def _environment() -> "Environment":
    # Imported here, because commands that write no page should not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bertree.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clip": clip, "percent": percent, "thousands": "{:,}".format}
    style, script = page_style(), asset("report.js")
    environment.globals |= {"style": style, "script": script, "policy": content_policy(style, script)}
    return environment


def page_style(*more: str) -> Markup:
    """Return the style of pages, and that of further files in assets/."""
    return stylesheet() + Markup("").join(asset(name) for name in ("report.css", *more))


def content_policy(style: str, script: str) -> str:
    """Return the content security policy of a page: only these two texts, and widths in attributes."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[1]}'; style-src 'unsafe-inline'; "
        f"style-src-elem 'sha256-{hashes[0]}'; style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> Markup:
    """Return a file in assets/."""
    return Markup(files("bertree.report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8"))


def in_one_scope(scripts: Iterable[str]) -> Markup:
    """Return scripts from assets/ as one, with names of its own."""
    return Markup('\n(() => {{\n"use strict";\n{}\n}})();\n').format(Markup("\n".join(scripts)))


def _clean(value: object) -> object:
    """Prepare a value for the page before it is escaped."""
    return replace_control_characters(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
