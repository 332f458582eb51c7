"""How the playground is used: keyboard, phone, colours, links, errors, keys, slow answers."""

import json
from typing import Any

from tests.serve.page.test_views import VIEWS, wait_quiet
from tests.support.asking import Asker
from tests.support.browser import Tab, listening

NEED_A_MODEL = ("fill", "similarity", "classify", "search", "map", "entities", "answer", "generate", "layers")
# Texts whose contrast with what is behind them is below WCAG's AA: 4.5, or 3 for large ones.
LOW_CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parse = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, under) => under.map((value, i) => top[i] * top[3] + value * (1 - top[3]));
  const linear = (value) => (value <= 10.3 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parse(getComputedStyle(at).backgroundColor));
    return layers.reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("body"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility() || node.closest("option, title, noscript, .skip, .spoken")) continue;
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    if (!size) continue;
    const back = behind(node);
    const ink = over(parse(node instanceof SVGElement ? style.fill : style.color), back);
    const [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
    const least = size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((high + 0.05) / (low + 0.05) < least) found.push(`${node.tagName} ${text.slice(0, 30)}`);
  }
  return found;
}"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
FOCUSED = "() => document.activeElement.textContent.trim() || document.activeElement.id"


def answer_with(page: Any, path: str, status: int, body: object, **headers: str) -> None:
    """Answer requests to a path in the server's place."""
    text = json.dumps(body)
    page.route(f"**/{path}", lambda route: route.fulfill(status=status, body=text, headers=headers))


def test_views_fit_a_phone_in_both_colour_schemes_with_enough_contrast(browser: Any, address: str) -> None:
    phone = Tab(browser, address, viewport={"width": 360, "height": 700}, reduced_motion="reduce", has_touch=True)
    page, background = phone.open("search", query="water"), {}
    for name in VIEWS:
        page.get_by_role("tab", name=name, exact=True).click()
        wait_quiet(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(LOW_CONTRAST) == [], (name, scheme)
            background[scheme] = sum(page.evaluate(BACKGROUND))
    assert background["dark"] < 120 <= background["light"]
    page.evaluate("document.querySelector('.head p').style.color = '#777777'")
    for scheme in background:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(LOW_CONTRAST) != [], "the measure finds what is too faint"
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light", exact=True).click()
    page.emulate_media(color_scheme="light")
    assert sum(page.evaluate(BACKGROUND)) < 120
    assert phone.close() == []


def test_the_keyboard_is_enough(tab: Tab) -> None:
    page = tab.open("fill", text="The capital of [MASK] is Paris.")
    wait_quiet(page)
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to the view"
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "Fill masks"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus can be seen"
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", level=1, name="Similarity of texts").wait_for()
    assert page.evaluate(FOCUSED) == "Similarity"
    wait_quiet(page)
    page.get_by_label("Texts").focus()
    page.keyboard.press("Tab")  # into the table, which is one stop
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "1 and 1: 1.00"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("3 and 2:")
    page.get_by_role("tab", name="Similarity").focus()
    page.keyboard.press("End")
    page.locator(".run-list button").first.wait_for()
    page.keyboard.press("ArrowUp")
    page.get_by_role("heading", level=1, name="The family and its design space").wait_for()
    page.locator(".tree [tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.locator(".point strong", has_text="bert-tiny").wait_for()
    page.get_by_role("tab", name="Family tree").focus()
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    page.locator(".heads button").first.wait_for()
    page.locator(".heads button").first.click()
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", name="Layer 2, head 1").wait_for()


def test_a_link_brings_view_and_state_back(tab: Tab) -> None:
    page = tab.open("fill", text="A [MASK] & a = b? #1 🌦", k="3")
    page.locator(".bars li").nth(2).wait_for()
    assert page.locator(".bars li").count() == 3
    page.get_by_label("Candidates", exact=True).press("ArrowRight")
    page.locator(".bars li").nth(3).wait_for()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".bars li").nth(3).wait_for()
    assert page.get_by_label("Text", exact=True).input_value() == "A [MASK] & a = b? #1 🌦"
    page.get_by_role("tab", name="Entities").click()
    page.get_by_role("tab", name="Fill masks").click()
    assert page.get_by_label("Text", exact=True).input_value() == "A [MASK] & a = b? #1 🌦", "a view keeps its state"


def test_an_answer_that_is_out_of_date_is_dropped(tab: Tab) -> None:
    page = tab.open("entities", text="on the road Ada")
    page.locator(".entities mark", has_text="Ada").wait_for()
    held: list[Any] = []

    def answer(route: Any) -> None:
        text = json.loads(route.request.post_data)["text"]
        if text == "slow Oslo":
            held.append(route)
        else:
            route.continue_()

    page.route("**/entities", answer)
    page.get_by_label("Text", exact=True).fill("slow Oslo")
    with page.expect_event("requestfailed") as failed:
        tab.wait_until(lambda: bool(held))
        page.get_by_label("Text", exact=True).fill("on the road Otto and Riga")
    assert json.loads(failed.value.post_data)["text"] == "slow Oslo", "the browser gives it up"
    page.locator(".entities mark", has_text="Riga").wait_for()
    assert len(held) == 1
    assert page.locator(".entities").text_content().startswith("on the road Otto")


def test_many_keys_are_one_question(tab: Tab) -> None:
    page = tab.open("entities", text="on the road Ada")
    page.locator(".entities mark").wait_for()
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request) if request.url.endswith("/entities") else None)
    keys = " by Greta in Porto"
    page.get_by_label("Text", exact=True).press_sequentially(keys, delay=5)
    page.locator(".entities mark", has_text="Porto").wait_for()
    assert 1 <= len(asked) <= len(keys) // 2, "one or two, and a few more where a busy machine holds keys up"


ERRORS = (
    (422, {"error": {"message": "text: is too long\nat line 3"}}, "text: is too long"),
    (429, {"error": {"message": "busy"}}, "The server is busy; try again in 7 s."),
    (500, "<b>no JSON of ours</b>", "The server answered 500."),
    (422, {"error": {"message": "<img src=x onerror=alert(1)>"}}, "<img src=x onerror=alert(1)>"),
)


def test_an_error_is_one_line_where_the_user_looks(browser: Any, address: str) -> None:
    tab = Tab(browser, address)
    for status, body, shown in ERRORS:
        answer_with(tab.page, "entities", status, body, **{"retry-after": "7"})
        page = tab.open("entities")
        page.get_by_role("alert").filter(has_text=shown).wait_for()
        assert page.get_by_role("alert").text_content() == shown
        page.unroute("**/entities")
        page.get_by_label("Text", exact=True).fill("on the road Ada")
        page.locator(".entities mark").wait_for()
        assert page.locator(".problem").text_content() == ""
    assert all("Failed to load resource" in line for line in tab.close())


def test_the_key_is_asked_for_and_kept_in_the_tab(browser: Any, address: str) -> None:
    tab = Tab(browser, address)

    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer open sesame":
            route.continue_()
        else:
            route.fulfill(status=401, body='{"error": {"message": "the key is wrong"}}')

    tab.page.route("**/v1/models", check)
    page = tab.open("fill")
    page.get_by_text("This server wants an API key.").wait_for()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server refused this key.").wait_for()
    page.keyboard.type("open sesame")
    page.keyboard.press("Enter")
    page.locator(".bars li").first.wait_for()
    assert "$BERTREE_API_KEY" in page.locator(".call pre").text_content()
    assert "sesame" not in page.content()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.locator(".bars li").first.wait_for()
    assert all("401" in line for line in tab.close())


def test_views_that_nothing_can_do_say_what_would(tab: Tab) -> None:
    answer_with(tab.page, "v1/models", 200, {"object": "list", "data": []})
    page = tab.open("fill")
    for view in NEED_A_MODEL:
        page.evaluate(f"location.hash = '{view}'")
        page.locator(f"#tab-{view}[aria-selected=true]").wait_for()
        assert page.locator(".notice code").text_content().startswith("bertree "), view
        assert "served" in page.locator(".notice strong").text_content(), view


def test_a_server_that_is_gone_is_said(browser: Any, address: str) -> None:
    tab = Tab(browser, address)
    tab.page.route("**/v1/models", lambda route: route.abort())
    page = tab.open("fill")
    page.get_by_text("The server does not answer.").wait_for()
    page.unroute("**/v1/models")
    page.get_by_role("button", name="Try again").click()
    page.locator(".bars li").first.wait_for()
    tab.close()


def test_a_slow_answer_is_shown_as_work(browser: Any, address: str) -> None:
    tab = Tab(browser, address)
    held: list[Any] = []
    tab.page.route("**/fill", lambda route: held.append(route))
    page = tab.open("fill")
    tab.wait_until(lambda: bool(held))
    assert page.locator(".view").get_attribute("aria-busy") == "true"
    tab.wait_until(lambda: page.locator(".progress").evaluate("e => getComputedStyle(e).opacity") == "1")
    page.get_by_role("tab", name="Similarity").click()  # nothing waits for it
    page.get_by_role("grid").wait_for()
    assert tab.close() == []


def test_no_view_shows_old_results_of_a_server_that_is_gone(browser: Any, address: str) -> None:
    tab = Tab(browser, address)
    page = tab.open("fill", text="The capital of [MASK] is Paris.")
    page.locator(".bars li").first.wait_for()
    page.route("**/*", lambda route: route.abort())
    page.get_by_label("Text", exact=True).fill("A [MASK] day.")
    page.locator(".problem", has_text="The server does not answer.").wait_for()
    assert page.locator(".bars").count() == 0
    for name in list(VIEWS)[1:]:
        page.get_by_role("tab", name=name, exact=True).click()
        if name not in ("Search", "Generate"):  # which ask when they are told to
            page.locator(".problem", has_text="The server does not answer.").wait_for()
    page.unroute("**/*")
    page.get_by_role("tab", name="Fill masks", exact=True).click()
    page.locator(".bars li").first.wait_for()
    assert all("Failed to load resource" in line for line in tab.close())


def test_nothing_moves_for_those_who_want_it_so(browser: Any, address: str) -> None:
    tab = Tab(browser, address, reduced_motion="reduce")
    page = tab.open("fill")
    page.locator(".bar-fill").first.wait_for()
    assert page.locator(".bar-fill").first.evaluate("e => getComputedStyle(e).transitionDuration") == "0s"
    assert page.locator(".progress").evaluate("e => getComputedStyle(e, '::after').animationName") == "none"
    assert tab.close() == []


def test_two_fingers_zoom_the_map_and_one_moves_it(browser: Any, address: str) -> None:
    phone = Tab(browser, address, viewport={"width": 360, "height": 700}, has_touch=True)
    page = phone.open("map")
    canvas = page.locator("canvas.map")
    canvas.scroll_into_view_if_needed()
    wait_quiet(page)
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = phone.context.new_cdp_session(page)

    def fingers(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": px, "y": py, "id": number} for number, (px, py) in enumerate(places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def picture() -> str:
        return str(canvas.evaluate("c => c.toDataURL()"))

    page.wait_for_timeout(80)
    seen = [picture()]
    fingers("touchStart", (x - 20, y), (x + 20, y))
    fingers("touchMove", (x - 24, y), (x + 24, y))
    fingers("touchEnd")
    phone.wait_until(lambda: picture() not in seen)
    page.wait_for_timeout(80)
    seen.append(picture())
    fingers("touchStart", (x, y))
    fingers("touchMove", (x + 12, y + 9))
    fingers("touchEnd")
    phone.wait_until(lambda: picture() not in seen)
    page.get_by_role("button", name="Show all").click()
    phone.wait_until(lambda: picture() == seen[0])
    assert phone.close() == []


def test_the_page_works_behind_a_proxy_under_a_prefix(browser: Any, server: Asker) -> None:
    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/tools/"), scope["path"]
        await server.app({**scope, "path": scope["path"].removeprefix("/tools")}, receive, send)

    with listening(proxy) as url:
        tab = Tab(browser, f"{url}/tools")
        page = tab.open("fill")
        page.locator(".bars li").first.wait_for()
        assert f"{url}/tools/fill" in page.locator(".call pre").text_content()
        assert tab.close() == []
