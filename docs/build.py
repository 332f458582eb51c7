"""Build the documentation site: `make docs`, or `python -m docs.build`.

The pages are those of the repository, where their links work too. They are copied to a temporary folder, with links
that lead to the place of each page in the site. The pages of studies are written from their committed rows, and
docs/generated.py fills in figures and tables where pages mark their places. Zensical then builds the site with
docs/zensical.toml. Every warning is an error: a page that the navigation leaves out, a link or an anchor that leads
nowhere, a study whose table.md does not equal its rows, and anything that a browser would load from another host.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from docs import api, generated, reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STUDIES = ROOT / "studies"
# Pages and files outside docs/, with their place in the site.
OTHERS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "src/bertree/default/README.md": "default-model.md",
    "NOTICE": "notice.txt",
    "CITATION.cff": "citation.txt",
}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s]+)\)")
# The attribute that a browser loads from, by tag. An `a` is followed only by a click.
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class SiteError(Exception):
    """The site cannot be built: one line for each problem."""


def places() -> dict[Path, str]:
    """Every file of the repository that the site holds, with its place in the site."""
    files = {ROOT / name: place for name, place in OTHERS.items()}
    files |= {page: str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))}
    files |= {notebook: f"examples/{notebook.name}" for notebook in sorted((ROOT / "examples").glob("*.ipynb"))}
    for folder in study_folders():
        files |= {folder / "table.md": f"studies/{folder.name}.md"}
        files |= {
            folder / name: f"studies/{folder.name}/{name}" for name in ("report.html", "rows.jsonl", "study.toml")
        }
    return files


def study_folders() -> list[Path]:
    return sorted(path.parent for path in STUDIES.glob("*/rows.jsonl"))


def title(page: Path) -> str:
    heading = re.match(r"# (.*)\n", page.read_text(encoding="utf-8"))
    if heading is None:
        raise SiteError(f"{page.relative_to(ROOT)}: the first line is not a title (# ...)")
    return heading[1]


def with_site_links(text: str, page: Path, place: str, place_of: dict[Path, str]) -> str:
    """The text of a page with links to the places in the site. A link that shows a file name shows its title."""

    def replace(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, mark, heading = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        file = (page.parent / path).resolve()
        if file not in place_of:
            raise SiteError(f"{page.relative_to(ROOT)}: {target} is not in the site (docs/build.py lists what is)")
        if re.fullmatch(r"[\w/.-]+\.md", label):
            label = title(file)
        return f"[{label}]({os.path.relpath(place_of[file], Path(place).parent)}{mark}{heading})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def study_page(folder: Path) -> str:
    """The page of a study, from its rows: the table, the definition, and links to report and rows."""
    from bertree.study.report import markdown_table
    from bertree.study.results import read_results

    results = read_results(folder)
    table = markdown_table(results) + "\n"
    if table != (folder / "table.md").read_text(encoding="utf-8"):
        raise SiteError(
            f"studies/{folder.name}/table.md does not equal its rows: bertree study report studies/{folder.name}"
        )
    definition = (folder / "study.toml").read_text(encoding="utf-8")
    links = f"[Report with figures and curves]({folder.name}/report.html) · [all rows]({folder.name}/rows.jsonl)"
    machines = ", ".join(dict.fromkeys(f"{each['machine']}, torch {each['torch']}" for each in results.sessions))
    log = ["git", "log", "-1", "--format=%h", "--", str(folder / "rows.jsonl")]
    commit = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    computed = f"Computed on {machines}." + (f" Rows of commit {commit}." if commit else "")
    links += " · [all studies](../studies.md)"
    return f"{table}\n{computed}\n\n{links}\n\n## Definition\n\n```toml\n{definition}```\n"


def recipes_page() -> str:
    """The page of all built-in recipes, from their files."""
    lines = [
        "# Built-in recipes",
        "",
        "The files of all built-in recipes, to look up a value or to begin your own recipe with.",
    ]
    lines += ["[Pretraining](pretraining.md#recipes) explains the settings."]
    for path in sorted((ROOT / "src/bertree/pretraining/recipes").glob("*.toml")):
        lines += ["", f"## Recipe {path.stem}", "", f"```toml\n{path.read_text(encoding='utf-8').strip()}\n```"]
    return "\n".join(lines) + "\n"


# Pages that are made from the code: the source that a link in the repository leads to, and how they are written.
GENERATED = {
    "recipes.md": ("src/bertree/pretraining/recipes", recipes_page),
    "verbs.md": ("src/bertree/cli/options.py", reference.verbs_page),
    "settings.md": ("src/bertree/config/sections.py", reference.settings_page),
    "functions.md": ("src/bertree/__init__.py", api.functions_page),
    "classes.md": ("src/bertree/inference/model.py", api.classes_page),
}


def nav_pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from nav_pages(value) if isinstance(value, list) else [value]


def write_pages(folder: Path) -> None:
    """Write what Zensical reads: the pages with their links, and the files beside them."""
    place_of = places() | {ROOT / source: place for place, (source, _) in GENERATED.items()}
    for source, place in places().items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix != ".md":
            shutil.copyfile(source, target)
            continue
        is_study = source.name == "table.md"
        if is_study:
            target.write_text(study_page(source.parent), encoding="utf-8")
            continue
        text = generated.fill(source.read_text(encoding="utf-8"), source, place_of)
        target.write_text(with_site_links(text, source, place, place_of), encoding="utf-8")
    for place, (_, page) in GENERATED.items():
        (folder / place).write_text(page(), encoding="utf-8")
    shutil.copytree(DOCS / "assets", folder / "assets")
    nav = list(nav_pages(tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")}
    if wrong := sorted(pages.symmetric_difference(nav)):
        raise SiteError(f"docs/zensical.toml: pages and navigation differ in {', '.join(wrong)}")


class Resources(HTMLParser):
    """The addresses that a page loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, "")) or ""
        if re.match(r"([a-z]+:)?//", address):
            self.outside.append(address)


def outside_resources(site: Path) -> list[str]:
    """One line for each address outside that a page or a style sheet of the site loads."""
    problems = []
    tags = re.compile(rf"""<(?:{"|".join(LOADED)})\b(?:[^>"']|"[^"]*"|'[^']*')*>""", re.IGNORECASE)
    for page in sorted(site.rglob("*.html")):
        parser = Resources()
        for tag in tags.findall(page.read_text(encoding="utf-8")):
            parser.reset()  # what follows a script is not inside it
            parser.feed(tag)
        problems += [f"{page.relative_to(site)} loads {address}" for address in parser.outside]
    for sheet in sorted(site.rglob("*.css")):
        loads = re.findall(r"url\([\"']?((?:https?:)?//[^)\"']+)|@import", sheet.read_text(encoding="utf-8"))
        problems += [f"{sheet.relative_to(site)} loads {address}" for address in loads]
    return problems


def build(out: Path) -> None:
    """Build the site into the folder `out`. Nothing there changes if something is wrong."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_pages(work / "pages")
        shutil.copyfile(DOCS / "zensical.toml", work / "zensical.toml")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SiteError((done.stdout + done.stderr).strip())
        if outside := outside_resources(work / "site"):
            raise SiteError("\n".join(outside))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site, which is replaced")
    out = parser.parse_args().out
    try:
        build(out)
    except SiteError as error:
        sys.exit(f"docs: {error}")
    print(f"{out}/index.html: {sum(1 for _ in out.rglob('*.html'))} pages")


if __name__ == "__main__":
    main()
