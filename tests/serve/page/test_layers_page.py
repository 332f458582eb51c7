"""The page of `bertree layers`, whose texts are explored by the playground's own script."""

from pathlib import Path
from typing import Any

import pytest

import bertree
from tests.inference.test_inspection import small_model
from tests.serve.page.test_use import LOW_CONTRAST
from tests.support.browser import Tab

TEXTS = ["the boat in the [MASK] river", "a tree in the river", "the old boat", "the river"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_texts_are_explored_by_mouse_and_keyboard(browser: Any, scheme: str, width: int, tmp_path: Path) -> None:
    models = [small_model(name, {"mask": 0}, init_std=0.4) for name in ("bert-base", "albert-base")]
    bertree.layers(*models, texts=TEXTS, out=tmp_path / "page.html")
    tab = Tab(browser, "file://", viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = tab.page
    page.goto(f"file://{tmp_path / 'page.html'}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    page.locator("#texts select").first.focus()
    page.keyboard.press("ArrowDown")  # the second text
    assert page.locator(".head-picture .word:not(.seen) text").nth(2).text_content() == "tree"
    page.keyboard.press("Tab")  # to the models
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")  # into the heads, which are one stop
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", name="Layer 2, head 1").wait_for()
    page.keyboard.press("Tab")  # to the tokens
    page.keyboard.press("ArrowDown")
    assert page.locator(".readout").text_content().startswith("a looks at ")
    page.locator(".head-picture .word:not(.seen)").nth(2).hover()
    assert page.locator(".readout").text_content().startswith("tree looks at ")
    page.get_by_text("norms", exact=True).click()
    assert page.get_by_role("region", name="Length of the state of each token, by layer").is_visible()
    assert page.locator(".heat td.share").first.get_attribute("title") == "0, 0: 1.0000"
    assert tab.close() == []
