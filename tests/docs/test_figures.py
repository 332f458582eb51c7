"""Figures and generated tables of the documentation: readable in both themes, current, and each on a page."""

import re
from pathlib import Path

import pytest

from docs import build, drawing, generated
from docs.build import DOCS
from tests.support.documentation import PAGES, ROOT

STYLES = (DOCS / "assets" / "site.css").read_text(encoding="utf-8")
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES if page.is_relative_to(DOCS)}
PAPER = {".drawing": "#ffffff", '[data-md-color-scheme="slate"] .drawing': "#0b0c0f"}
LETTER = 6.7  # mean width of a letter in DejaVu Sans, the widest of the fonts


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", PAPER)
def test_text_and_lines_of_figures_have_the_contrast_of_wcag_aa(theme: str) -> None:
    rule = re.search(rf"^{re.escape(theme)} {{ (--text.*?) }}$", STYLES, re.MULTILINE)
    assert rule is not None
    colors = dict(re.findall(r"--(\w+): (#\w{6});", rule[1]))
    for fill in (*(colors[kind] for kind in drawing.KINDS), colors["pad"], PAPER[theme]):
        assert contrast(colors["text"], fill) >= 4.5
    assert contrast(colors["line"], PAPER[theme]) >= 3
    assert contrast(colors["mark"], PAPER[theme]) >= 3


@pytest.mark.parametrize("name", generated.FIGURES)
def test_a_figure_is_drawn_within_its_frame(name: str) -> None:
    figure = generated.FIGURES[name]()
    assert "\n" not in figure  # a blank line would end it in Markdown
    height = int(re.findall(r'viewBox="0 0 360 (\d+)"', figure)[0])
    for x, y, width, tall in re.findall(
        r'<rect x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.]+)"', figure
    ):
        assert 0 <= float(x) <= drawing.WIDTH - float(width)
        assert 0 <= float(y) <= height - float(tall)
    for x, y, anchor, words in re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)"[^>]*>(.*?)<', figure):
        start = float(x) - {"start": 0, "middle": 0.5, "end": 1}[anchor] * LETTER * len(words)
        assert -2 <= start <= drawing.WIDTH + 2 - LETTER * len(words), words
        assert 0 < float(y) <= height


def test_every_figure_and_every_study_is_on_a_page() -> None:
    marked = [generated.named(text, ["figure"]) for text in TEXTS.values()]
    assert set().union(*marked) == set(generated.FIGURES)
    studies = {path.stem for path in (ROOT / "src/bertree/study/files").glob("*.toml")}
    experiments = {path.name for path in (ROOT / "studies").iterdir()}
    named = set().union(*(generated.named(text) for text in TEXTS.values()))
    assert studies <= named <= studies | experiments


def test_pages_are_filled_from_rows_and_presets() -> None:
    places = build.places()
    page = DOCS / "family" / "albert.md"

    def filled(marker: str) -> str:
        return generated.fill(f"a\n\n<!-- {marker} -->\n", page, places)

    table = filled("study: albert-sop mlm nsp")
    assert "| the sentence objective of pretraining | MLM accuracy | NSP accuracy |" in table
    assert "(54.9)" in table  # published
    assert "../../studies/albert-sop/table.md" in table
    assert "bertree study run bert-glue" in filled("studies: bert-glue")  # no rows: the command
    assert "../../studies/few-examples/table.md" in filled("studies: few-examples")  # small is preferred to tiny
    assert "| `sharing` | `all` | `none` |" in filled("presets: albert-base")
    assert (
        "| `sharing` | `none` | what the layers share: none, attention, ffn or all | `all`: [ALBERT](albert.md) |"
        in filled("design-space")
    )
    assert "megatron-bert-3.9b" in generated.members()
    assert 'href="albert.html"' in filled("figure: map")


@pytest.mark.parametrize("page", [page for page in TEXTS if page.parent.name == "family"], ids=lambda page: page.stem)
def test_markers_of_a_member_are_understood(page: Path) -> None:
    for line in re.findall(r"^<!-- .* -->$", TEXTS[page], re.MULTILINE):
        assert generated.MARKER.match(line), line
