"""Every view of the playground in a real browser, against a real server with small models."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Tab
from tests.support.processes import PATIENCE

VIEWS = {
    "Start": "What this server holds",
    "Fill masks": "Fill in the mask",
    "Similarity": "Similarity of texts",
    "Classify": "Classes of texts",
    "Search": "Search an index",
    "Map": "Map of an index",
    "Entities": "Entities in a text",
    "Answers": "An answer in its passage",
    "Generate": "Continue a text",
    "Layers": "Attention and layers",
    "Compare": "Two models side by side",
    "Family tree": "The family and its design space",
    "Runs": "Runs and studies",
}


def wait_quiet(page: Any) -> None:
    """Wait until every question is answered."""
    page.wait_for_selector(".view[aria-busy=false]")
    page.wait_for_timeout(350)  # longer than any pause before a question
    page.wait_for_selector(".view[aria-busy=false]")


def test_every_view_opens_from_its_tab_without_a_problem(tab: Tab) -> None:
    page = tab.open()
    for name, title in VIEWS.items():
        page.get_by_role("tab", name=name, exact=True).click()
        page.get_by_role("heading", level=1, name=title).wait_for()
        wait_quiet(page)
        assert page.locator(".problem").all_text_contents() in ([], [""]), name
        assert page.locator(".notice").count() == 0, name
        assert page.locator(".call pre").text_content() or name == "Search", name
    assert page.url.endswith("#runs")
    page.go_back()
    page.get_by_role("heading", level=1, name="The family and its design space").wait_for()


def test_a_word_that_is_clicked_is_masked_and_filled(tab: Tab) -> None:
    page = tab.open("fill", text="The capital of France is Paris.")
    page.get_by_text("Click a word above").wait_for()
    page.get_by_role("button", name="Paris", exact=True).click()
    assert page.get_by_label("Text", exact=True).input_value() == "The capital of France is [MASK]."
    bars = page.get_by_label("Candidates for mask 1").get_by_role("button")
    bars.first.wait_for()
    assert bars.count() == 6
    shares = [float(text.split()[0]) for text in page.locator(".bar-value").all_text_contents()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5
    best = page.locator(".bar-word").first.text_content()
    bars.first.click()
    assert page.get_by_label("Text", exact=True).input_value() == f"The capital of France is {best}."
    page.get_by_role("button", name="France", exact=True).click()
    page.get_by_label("Candidates for mask 1").wait_for()
    page.locator(".word.mask").click()  # brings the word back
    assert page.get_by_label("Text", exact=True).input_value() == f"The capital of France is {best}."


def test_similar_lines_have_the_highest_cosine(tab: Tab) -> None:
    lines = "A man plays a guitar.\nThe market fell.\nSomebody plays the guitar."
    page = tab.open("similarity", lines=lines)
    page.get_by_role("grid").wait_for()
    assert page.get_by_role("gridcell").count() == 9
    value = {
        (i, j): float(page.get_by_role("gridcell").nth(3 * i + j).text_content()) for i in range(3) for j in range(3)
    }
    assert value[0, 0] == value[1, 1] == 1
    assert value[0, 2] == value[2, 0] > value[0, 1]
    page.get_by_role("gridcell").nth(2).hover()
    assert "Somebody plays the guitar." in page.locator(".readout").text_content()
    with page.expect_request("**/v1/embeddings") as sent:
        page.get_by_label("Texts").fill(f"{lines}\nRain")
    assert json.loads(sent.value.post_data)["input"] == ["Rain"], "known lines are not sent again"


def test_search_marks_words_and_filters_by_metadata(tab: Tab) -> None:
    page = tab.open("search")
    field = page.get_by_label("Question or words")
    assert field.evaluate("e => e === document.activeElement"), "one can type at once"
    field.press_sequentially("lighthouse family", delay=5)
    page.locator(".hit mark", has_text="family").wait_for()
    wait_quiet(page)
    marks = page.locator(".hit", has_text="rebuilt").locator("mark")
    assert marks.all_text_contents() == ["lighthouse", "family"]
    assert page.locator(".hit").count() == 4
    page.get_by_label("Rerank with").select_option(label="default, token by token")
    page.get_by_text("score: that of default").wait_for()
    page.locator(".hit .chip", has_text="place coast").first.click()
    page.get_by_text("2 passages in").wait_for()
    assert page.locator(".hit .chip", has_text="place").all_text_contents() == ["place coast"] * 2
    page.get_by_label("Only where").fill("year=1921, place=inland, place=coast")
    page.get_by_text("1 passage in").wait_for()
    page.get_by_label("Only where").fill('place="no, where"')
    page.get_by_text("Nothing fits the filter.").wait_for()


def test_entities_are_marked_at_their_characters(tab: Tab) -> None:
    page = tab.open("entities", text="on 🚣🚣 the road Ada with Oslo 𝒳 and Otto")
    page.locator(".entities mark").nth(1).wait_for()
    texts = page.locator(".entities mark").evaluate_all("marks => marks.map(m => m.firstChild.textContent)")
    assert texts == ["Ada", "Oslo", "Otto"]
    assert page.locator(".legend li").all_text_contents() == ["LOC 1", "PER 2"]


def test_an_answer_is_marked_in_the_passage_and_in_the_index(tab: Tab) -> None:
    page = tab.open("answer", question="which colour is it ?", passage="🌲 the boat on the river is green with a lamp")
    page.locator(".best", has_text="green").wait_for()
    assert page.locator(".reading mark").all_text_contents() == ["green"]
    page.get_by_text("an index", exact=True).click()
    page.locator(".reading .small", has_text="notes").wait_for()
    assert page.get_by_label("Passage", exact=True).is_hidden()
    assert page.locator(".answers li").count() >= 1


def test_heads_tokens_and_layers_can_be_looked_at(tab: Tab) -> None:
    page = tab.open("layers", text="The cat sat on the mat.")
    heads = page.locator(".heads button")
    heads.first.wait_for()
    assert heads.count() == 6 * 12
    assert page.locator(".lens tbody tr").count() == 7
    heads.nth(12 * 2 + 3).click()
    page.get_by_role("heading", name="Layer 3, head 4").wait_for()
    page.get_by_role("button", name="Attention of cat, token 3").hover()
    assert page.locator(".head-picture .chosen").count() == 1
    assert page.locator(".head-picture path").count() >= 1
    page.get_by_text("norms").click()
    assert re.fullmatch(r"\d+\.\d", page.locator(".lens td").last.text_content())
    assert "layer=3&head=4" in page.url


def test_the_map_shows_passages_zooms_and_colours(tab: Tab) -> None:
    page = tab.open("map")
    canvas = page.locator("canvas.map")
    canvas.wait_for()
    page.wait_for_timeout(100)
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".map-card .reading").wait_for()
    seen = {page.locator(".map-card .reading").text_content()}
    for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight", "ArrowUp") * 2:
        page.keyboard.press(key)
        seen.add(page.locator(".map-card .reading").text_content())
    assert len(seen) >= 3
    link, text = page.url, page.locator(".map-card .reading").text_content()
    page.goto("about:blank")
    page.goto(link)
    page.locator(".map-card .reading").wait_for()
    assert page.locator(".map-card .reading").text_content() == text, "the passage is part of the address"
    before = canvas.evaluate("c => c.toDataURL()")
    canvas.hover()
    page.mouse.wheel(0, -400)
    tab.wait_until(lambda: canvas.evaluate("c => c.toDataURL()") != before)  # the wheel zooms
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Colour by").select_option("metadata place")
    assert sorted(page.locator(".legend button").all_text_contents()) == ["coast 2", "inland 2"]
    page.get_by_label("Colour by").select_option("cluster")
    words = " ".join(page.locator(".legend button").all_text_contents())
    assert re.search(r"[a-z]{4,}, [a-z]{3,}", words), "clusters are named by words"
    page.get_by_role("link", name="Find passages like this").click()
    page.locator(".hit").first.wait_for()


def test_a_text_is_written_piece_by_piece_the_same_again_and_can_be_stopped(tab: Tab) -> None:
    page = tab.open("generate", prompt="the boat", tokens="30", model="writer")
    page.get_by_role("button", name="Generate", exact=True).click()
    page.get_by_text(re.compile(r"^\d+ tokens in")).wait_for()
    text = page.locator(".tail").text_content()
    assert len(text.split()) >= 3
    page.get_by_role("button", name="Generate", exact=True).click()
    page.get_by_text("Writing").wait_for(state="hidden")
    assert page.locator(".tail").text_content() == text, "the same seed"
    page.route("**/generate", lambda route: None)  # never answered
    page.get_by_role("button", name="Generate", exact=True).click()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Stopped.").wait_for()


def test_turning_an_axis_changes_what_a_model_costs(tab: Tab) -> None:
    page = tab.open("family")
    page.locator(".tile b", has_text="109 M").wait_for()
    page.get_by_role("treeitem", name="albert-base").click()
    page.locator(".tile b", has_text="11.7 M").wait_for()
    page.get_by_label("layers", exact=True).press("Home")
    page.get_by_text("× the preset").first.wait_for()
    assert "changes=layers%3D1" in page.url
    page.get_by_label("heads", exact=True).press("ArrowRight")
    page.locator(".problem", has_text="heads").wait_for()
    page.get_by_role("button", name="Back to the preset").click()
    page.locator(".tile .small", has_text="11,683,584").wait_for()
    assert page.locator(".problem").text_content() == ""


def test_the_first_page_names_what_is_served_and_leads_there(tab: Tab) -> None:
    page = tab.open()
    page.get_by_role("heading", level=1, name="What this server holds").wait_for()
    wait_quiet(page)
    held = " ".join(page.locator(".holdings li").all_text_contents())
    for name in ("default", "notes", "tagger", "sentiment", "4 passages", "2 runs and 1 study"):
        assert name in held
    assert page.locator(".card").count() == 8
    page.locator(".holdings li", has_text="sentiment").get_by_role("link", name="classifies").click()
    page.get_by_role("heading", level=1, name="Classes of texts").wait_for()
    page.go_back()
    page.locator(".card", has_text="Hide a word").click()
    page.locator(".bars li").first.wait_for()


def test_texts_and_pairs_are_classified(tab: Tab) -> None:
    page = tab.open("classify", model="sentiment", texts="the boat is happy and sweet\nthe stale road is awful")
    page.locator(".classes .bars").nth(1).wait_for()
    best = [part.locator(".bar-word").first.text_content() for part in page.locator(".classes section.panel").all()]
    assert len(set(best)) == 2, best
    page = tab.open("classify", model="pairs")
    page.get_by_label("Second text").fill("Somebody sings.")
    page.locator(".call pre", has_text='[["A man is playing a guitar.","Somebody sings."]]').wait_for()
    page.locator(".classes .bar-value").first.wait_for()


def test_two_models_stand_side_by_side(tab: Tab) -> None:
    page = tab.open("compare", kind="similarity", left="default", right="tagger")
    sides = [page.get_by_label(f"{name} model", exact=True).get_by_role("gridcell") for name in ("First", "Second")]
    tab.wait_until(lambda: [side.count() for side in sides] == [16, 16])
    assert sides[0].nth(1).text_content() != sides[1].nth(1).text_content()
    page.get_by_text("layers", exact=True).click()
    page.get_by_label("Second model").locator(".heads button").first.wait_for()
    tab.wait_until(lambda: page.get_by_label("First model").locator(".heads button").count() == 72)
    page.locator("select").nth(1).select_option("reader")
    tab.wait_until(lambda: "right=reader" in page.url)


def test_curves_grow_with_their_run_and_a_study_is_a_table(tab: Tab, runs: Path) -> None:
    page = tab.open("runs")
    chart = page.locator(".chart-card", has_text="loss")
    chart.get_by_text("training 5").wait_for()
    assert page.get_by_text("step 40 of 100").count() == 2
    with (runs / "going" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 41, "loss": 1.125, "lr": 1e-4}\n{"kind": "train", "st')
    chart.get_by_text("training 1.125").wait_for()  # without a click
    chart.locator("svg").focus()
    page.keyboard.press("Home")
    chart.get_by_text("step 1", exact=True).wait_for()
    page.get_by_role("button", name="runs/ended").click()
    page.locator(".chart-card .legend", has_text="runs/ended, training").first.wait_for()
    page.get_by_role("button", name="runs/study").click()
    page.locator(".study h3", has_text="Own study").wait_for()
    assert page.locator(".study td.number").first.text_content() == "53.0 ± 1.8"
    assert page.locator("details", has_text="1 of 2 steps done").get_attribute("open") is not None


def test_a_call_can_be_tried_on_the_page_of_routes(tab: Tab) -> None:
    tab.page.goto(f"{tab.address}/docs")
    route = tab.page.locator("details", has_text="POST /fill")
    route.locator("summary").click()
    route.get_by_role("button", name="Send").click()
    route.get_by_text("200 in").wait_for()
    assert '"masks"' in route.locator(".answer").text_content()
    route.get_by_label("Body").fill("{")
    route.get_by_role("button", name="Send").click()
    assert "not JSON" in route.get_by_role("alert").text_content()


def test_members_stand_in_a_plot_and_two_can_be_pinned(tab: Tab) -> None:
    page = tab.open("family", preset="albert-base")
    page.locator("circle.chosen").wait_for()
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_role("button", name=re.compile("^bert-tiny:")).press("Enter")
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_role("button", name=re.compile("^bert-base:")).press("Enter")
    page.get_by_role("columnheader", name="bert-base", exact=True).wait_for()
    heads = page.locator(".figures thead th").all_text_contents()
    assert heads == ["", "albert-base", "bert-tiny", "bert-base"]
    assert "hashes" not in page.locator(".axes").all_text_contents()[0], "only axes that matter"
    assert page.locator(".axis .small").first.text_content() == "depth: number of layers"
    page.get_by_label("attention", exact=True).select_option("lsh")
    page.locator("summary", has_text="more axes").click()
    page.get_by_label("hashes", exact=True).wait_for()


@pytest.mark.parametrize(
    ("view", "values"),
    [
        ("fill", {"text": "It's a \"[MASK]\" \\ $HOME `ls` 'day' 🌦\nand\tmore"}),
        ("entities", {"text": "Ada's é 'Oslo' $(date)"}),
        ("map", {}),
    ],
)
def test_the_calls_that_are_shown_work(tab: Tab, view: str, values: dict[str, str]) -> None:
    page = tab.open(view, **values)
    wait_quiet(page)
    answers = []
    for name, command in (("curl", ["bash", "-c"]), ("Python", [sys.executable, "-c"])):
        page.get_by_role("tab", name=name, exact=True).click()
        shown = page.locator(".call pre").text_content()
        if name == "curl" and shutil.which("curl") is None:
            continue
        run = subprocess.run([*command, shown], capture_output=True, text=True, check=True, timeout=PATIENCE)
        answers.append(json.loads(run.stdout) if name == "curl" else eval(run.stdout, {"__builtins__": {}}))
    assert all(answer == answers[0] for answer in answers)
    assert {"masks", "entities", "points"} & set(answers[0])
    if view == "entities":
        assert [entity["text"] for entity in answers[0]["entities"]][:1] == ["Ada"]
