"""A real server over a real store, and a Chromium that watches every page.

What a page must never do, whatever a test does with it, is looked at when the test ends: say anything in the console,
raise an error, or ask another host for something.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "campaign")]

from browser_serving import serving  # noqa: E402
from browser_store import Shown, command, make_store  # noqa: E402

from kernelwright.store import Store  # noqa: E402

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Sums what was laid out anew without anybody's doing; reads it also where that came before the observer.
WATCH = """
window.layoutShifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const nodes = entry.sources.map(({ node }) => node?.outerHTML?.slice(0, 80) ?? node?.textContent?.slice(0, 80));
    window.layoutShifts.push([entry.value, ...nodes]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them drive a browser, and none within the usual time of a test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The store, and what is in it."""
    return make_store(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="session")
def site(shown: Shown) -> Iterator[str]:
    """A server over the store."""
    with serving(shown.path) as address:
        yield address


@pytest.fixture(scope="session")
def empty_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over a store in which nothing is."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    Store.open(path).close()
    with serving(path) as address:
        yield address


@pytest.fixture(scope="session")
def tokens(shown: Shown) -> dict[str, str]:
    """The secrets of a token for each scope."""
    return {
        scope: command(shown.path, "tokens", "create", f"ada-{scope}", "--scope", scope)["secret"]
        for scope in ("read", "submit")
    }


@pytest.fixture(scope="session")
def submitting_site(shown: Shown, tokens: dict[str, str]) -> Iterator[str]:
    """A server that takes submissions."""
    with serving(shown.path, "--accept-submissions") as address:
        yield address


@pytest.fixture(scope="session")
def public_site(shown: Shown, tokens: dict[str, str]) -> Iterator[str]:
    """A server whose pages are for holders of a token."""
    with serving(shown.path, "--public") as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.fail("no Chromium here: apt install chromium (make test-browser does)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@dataclass
class Window:
    """A page, and what was seen of it.

    Attributes:
        expected: parts of what the console may say: that an answer was an error, where a test asks for one.
    """

    page: Any
    site: str
    scripts: bool = True
    received: dict[str, int] = field(default_factory=dict)  # bytes, by request
    said: list[str] = field(default_factory=list)
    asked_elsewhere: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def go(self, path: str, *, status: int = 200) -> Any:
        """Open a page of the site and wait until it has settled; returns Playwright's page."""
        if status >= 400:
            self.expected.append(f"status of {status}")
        answer = self.page.goto(f"{self.site}{path}", wait_until="load")
        assert answer.status == status, (path, answer.status)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until htmx is done, and two frames are drawn."""
        if not self.scripts:
            return
        self.page.wait_for_function(
            "() => document.readyState === 'complete' && !document.querySelector('.htmx-request, .htmx-swapping')"
        )
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @property
    def path(self) -> str:
        """Where the page is, without the host."""
        parts = urlsplit(self.page.url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def unexpected(self) -> list[str]:
        """What the console said that nobody asked for."""
        return [line for line in self.said if not any(part in line for part in self.expected)]


@pytest.fixture
def window(browser: Any) -> Iterator[Callable[..., Window]]:
    """Opens watched pages; what they must never do is checked when the test is over."""
    opened: list[tuple[Any, Window]] = []

    def make(address: str, **options: Any) -> Window:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        context.set_default_timeout(20_000)
        page = context.new_page()
        made = Window(page, address, scripts=options.get("java_script_enabled", True))
        _watch(context, page, made)
        opened.append((context, made))
        return made

    yield make
    for context, one in opened:
        context.close()
        assert one.asked_elsewhere == []
        assert one.unexpected() == []


def _watch(context: Any, page: Any, made: Window) -> None:
    def guard(route: Any) -> None:
        if route.request.url.startswith(made.site + "/"):
            route.continue_()
        else:
            made.asked_elsewhere.append(route.request.url)
            route.abort()

    context.route(re.compile(r"^(?!data:|blob:)"), guard)
    page.add_init_script(WATCH)
    page.on("console", lambda m: made.said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: made.said.append(str(error)))
    page.on("crash", lambda _: made.said.append("the page crashed"))
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")

    def finished(event: dict[str, Any]) -> None:
        made.received[event["requestId"]] = event["encodedDataLength"]

    devtools.on("Network.loadingFinished", finished)


@pytest.fixture
def open_page(window: Callable[..., Window], site: str) -> Callable[..., Window]:
    """Opens a page of the site in a window of its own."""

    def make(path: str, *, status: int = 200, **options: Any) -> Window:
        made = window(site, **options)
        made.go(path, status=status)
        return made

    return make
