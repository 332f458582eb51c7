"""The documentation site: pages that begin with a sentence, links that work there too, and a strict build."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import bertree
from docs import api, build, reference
from tests.support.documentation import ROOT

PAGES = [page for page, place in build.places().items() if place.endswith(".md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_sentence(page: Path) -> None:
    heading, empty, first = page.read_text(encoding="utf-8").splitlines()[:3]
    assert heading.startswith("# ")
    assert not empty
    assert re.match(r"[\w*`\[]", first), f"{page.name}: say first what the page is for"


def test_links_lead_to_places_of_the_site() -> None:
    places = build.places()
    page = ROOT / "docs" / "studies.md"
    text = "[data.md](data.md#masking) [a](../README.md) [b](../studies/albert-sop/table.md) [c](https://x.org)"
    assert build.with_site_links(text, page, "studies.md", places) == (
        "[From text to batches](data.md#masking) [a](index.md) [b](studies/albert-sop.md) [c](https://x.org)"
    )
    back = build.with_site_links("[a](../../docs/data.md)", ROOT / "studies/albert-sop/x.md", "studies/x.md", places)
    assert back == "[a](../data.md)"
    assert build.with_site_links("```\n[a](b.md)\n```", page, "studies.md", places) == "```\n[a](b.md)\n```"
    with pytest.raises(build.SiteError, match="Makefile is not in the site"):
        build.with_site_links("[a](../Makefile)", page, "studies.md", places)


def test_what_a_page_loads_from_outside_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org">x</a><img src="b.png"><script src="//x.org/c.js"></script>'
    )
    (tmp_path / "d.css").write_text("p { background: url(https://x.org/e.png) } q { background: url(f.png) }")
    assert build.outside_resources(tmp_path) == ["a.html loads //x.org/c.js", "d.css loads https://x.org/e.png"]


def test_the_reference_has_every_verb_setting_function_and_class() -> None:
    verbs, settings, functions, classes = (
        page() for page in (reference.verbs_page, reference.settings_page, api.functions_page, api.classes_page)
    )
    assert "### index query" in verbs
    assert "| `-k`, `--top` | Passages to show. | integer, >= 1 | 5 |" in verbs
    assert "#### optim.lr\n\nthe highest learning rate of the schedule<br>\n*number, > 0, default `0.0001`*" in settings
    assert "*text, one of `none`, `attention`, `ffn`, `all`, default `none`*" in settings
    assert not re.search(r"^\|[^|]*\| *\|^<br>", settings + verbs, re.MULTILINE), "every one has a meaning"
    assert {f"bertree.{name}" for name in bertree.__all__} == {
        "bertree.__version__",
        *re.findall(r"^## (bertree\.\w+)$", functions, re.MULTILINE),
        *re.findall(r"^### (bertree\.\w+)$", classes, re.MULTILINE),
    }
    assert "#### Model.embed" in classes
    assert "| `token` | `str` |" in classes  # a field of a value: Candidate


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(find_spec("zensical") is None, reason="the extra docs is not installed")
def test_the_site_builds_and_a_broken_anchor_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    build.build(site)
    titles = {item["title"] for item in json.loads((site / "search.json").read_text())["items"]}
    assert {"ALBERT", "Sentence order prediction", "Recipe bert-base-tiny", "Model.embed", "data.mask_rate"} <= titles
    asked = {"How fast", "How do I train on my own text?", "is a pickle, which can run code when it is read"}
    assert asked <= titles, "what strangers look for"
    before = (site / "xlnet.html").read_bytes()

    def write_broken_page(folder: Path) -> None:
        folder.mkdir()
        (folder / "index.md").write_text("# Home\n\n[a](#nowhere)\n")

    monkeypatch.setattr(build, "write_pages", write_broken_page)
    with pytest.raises(build.SiteError, match="anchor does not exist"):
        build.build(site)
    assert (site / "xlnet.html").read_bytes() == before
