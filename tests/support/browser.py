"""A real browser for tests of the playground, and a server it can reach."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.support.processes import PATIENCE

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root in a container, and without any connection of the browser's own.
ARGUMENTS = (
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium(home: Path) -> Iterator[Any]:
    """Start the system's Chromium, or skip the test where there is none. What it keeps, it keeps in `home`."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium (apt-get install chromium)")
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(ARGUMENTS), env=environment)
        yield browser
        browser.close()


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application on a free port of this machine; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


class Tab:
    """A page of the browser that notes every error of the console and every request to another host."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.address = address
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.text} {message.location.get('url', '')}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "about:")):
            self.wrong.append(f"asks {request.url}")

    def open(self, view: str = "", **values: str) -> Any:
        """Load the page anew at a view with a state; return the page."""
        from urllib.parse import urlencode

        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/#{view}" + (f"?{urlencode(values)}" if values else ""))
        return self.page

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Look every few milliseconds until something is so; fail if it never is."""
        for _ in range(25 * PATIENCE):
            if is_so():
                return
            self.page.wait_for_timeout(40)
        raise AssertionError("it did not happen")

    def close(self) -> list[str]:
        """Return what went wrong."""
        self.context.close()
        return self.wrong
