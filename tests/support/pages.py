"""Read a page as a browser would, and refuse what no page of ours may hold."""

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "br", "link", "img"}
Skeleton = list[tuple[str, tuple[tuple[str, str | None], ...]]]


class Page(HTMLParser):
    """What is in a page. Every element is closed, in order; nothing comes from elsewhere; no event runs anything."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.skeleton: Skeleton = []  # every element with the names of its attributes, and its class
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.source = source
        self.feed(source)
        self.close()
        assert self.open == []
        if "html" in self.seen:
            self._check_policy()
        self.text = re.sub(r"\s+", " ", self.text)
        self.svgs = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", source, re.DOTALL)]

    def _check_policy(self) -> None:
        """Check that the policy allows the page's own style and script, which are all there are."""
        policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', self.source)
        assert len(policy) == 1
        assert policy[0].startswith("default-src &#39;none&#39;; ")
        for tag in ("style", "script"):
            texts = re.findall(rf"<{tag}>(.*?)</{tag}>", self.source, re.DOTALL)
            assert len(texts) == self.seen.count(tag) <= 1
            hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
            assert all(f"sha256-{digest}" in html.unescape(policy[0]) for digest in hashes), tag

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.skeleton.append((tag, tuple((name, value if name == "class" else None) for name, value in attrs)))
        assert tag not in ("img", "link", "iframe", "object", "base", "form"), tag
        for name, value in attrs:
            assert name not in ("src", "xlink:href", "srcset", "action"), (tag, name)
            assert not name.startswith("on"), (tag, name)
            if name == "href":
                assert value is not None
                assert re.fullmatch(r"seed-[\w%.-]+/report\.html", value), value
                self.links.append(value)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data + " "
            if {"td", "th"} & set(self.open):
                self.rows[-1][-1] += data

    def row(self, first: str, skip: int = 0) -> list[str]:
        """The cells after the first of the row that begins so; empty ones (bars) left out."""
        rows = [row for row in self.rows if row and row[0] == first]
        return [cell for cell in rows[skip][1:] if cell]

    def titles(self) -> list[str]:
        return [str(svg.get("aria-label")) for svg in self.svgs]
