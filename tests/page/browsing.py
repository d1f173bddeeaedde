"""Opens pages in chromium, and judges them: errors of JavaScript, accessibility, width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

playwright = pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, BrowserContext, Error, Page  # noqa: E402

Windows = dict[str, BrowserContext]
USUAL: Final = {"timezone_id": "Asia/Tokyo", "permissions": ["clipboard-read", "clipboard-write"]}
"""Of all windows: a reader far from UTC, who may copy."""
WIDE: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first has no parts for windows and costs half the CPU of the others, which do as well."""
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
EXPECTED = ("Failed to load resource", "net::ERR_")
"""Of a request that failed (a monitor away, a token refused): chromium logs those by itself, and no
code of ours can keep it from that. Errors of code and of the policy read otherwise."""


@contextmanager
def chromium(*more: str) -> Iterator[Browser]:
    """A browser of its own; skips the test where there is none.

    Playwright's synchronous half keeps an event loop on the thread until it is left.
    """
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", *more]
        )
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """The pages of one test, one after the other in a tab of a window that all tests share, one for
    each set of options: a new window costs half a second of CPU."""

    def __init__(self, browser: Browser, windows: Windows | None = None) -> None:
        self._browser = browser
        self._windows: Windows = {} if windows is None else windows
        self._tabs: dict[str, Page] = {}
        self.errors: list[str] = []
        """Of JavaScript and of the Content-Security-Policy."""

    def open(self, url: str, *, width: int = 1440, height: int = 900, scheme: str = "light",
             until: str = "load", **context) -> Page:  # fmt: skip
        """A page, loaded.

        Args:
            url: where it is.
            width: of the viewport, in CSS pixels.
            height: of the viewport.
            scheme: `light` or `dark`.
            until: what Playwright waits for.
            context: options of `Browser.new_context` that differ from `USUAL`.
        """
        if (options := repr(context)) not in self._windows:
            self._windows[options] = self._browser.new_context(**USUAL, **context)
            self._windows[options].new_page()  # a window stays as long as it has a tab
        if options not in self._tabs:
            self._tabs[options] = self._windows[options].new_page()
            self._tabs[options].set_default_timeout(15_000)
            self._tabs[options].on("pageerror", lambda error: self.errors.append(str(error)))
            self._tabs[options].on("console", self._heard)
        page = self._tabs[options]
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(url, wait_until=until)
        return page

    def _heard(self, message) -> None:
        if message.type == "error" and not any(text in message.text for text in EXPECTED):
            self.errors.append(message.text)

    def close(self) -> None:
        for tab in self._tabs.values():
            with suppress(Error):  # one that shows nothing has no storage
                tab.evaluate("localStorage.clear(); sessionStorage.clear()")
            tab.close()


def timed(opened: Opened, url: str, **more) -> Page:
    """A page whose clock the test turns: what its script does every few seconds costs none."""
    page = opened.open("about:blank", locale="en-US", **more)  # a clock is its window's
    page.clock.install()
    page.goto(url)
    return page


def live(page: Page) -> None:
    """The page's script runs, and asks for changes."""
    page.wait_for_selector("body.scripted")


def assert_accessible(page: Page, *, also: str = "") -> None:
    """Axe-core finds nothing serious or critical.

    Args:
        page: where it looks.
        also: a scheme whose colours are judged, too; nothing else differs there.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"resultTypes": ["violations"], "preload": False}
    violations = axe.Axe().run(page, options=options).response["violations"]
    if also:
        page.emulate_media(color_scheme=also)
        colours = options | {"runOnly": ["color-contrast"]}
        again = "(options) => axe.run(document, options)"  # it is there, and warm
        violations += page.evaluate(again, colours)["violations"]
    grave = [
        f"{violation['id']} ({violation['impact']}): {violation['help']}: "
        + "; ".join(str(node["target"]) for node in violation["nodes"][:5])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]
    assert not grave, "\n".join(grave)


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window: no horizontal scroll bar."""
    wide = page.evaluate(
        """() => {
          const room = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= room) return [];
          return [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > room + 0.5)
            .slice(0, 5).map((one) => one.outerHTML.slice(0, 160));
        }"""
    )
    assert not wide, wide
