"""Pictures of pages, in every width and scheme, and of the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.segment import Segments
from rich.terminal_theme import MONOKAI

from lightkeeper.monitor.commands.ask import Monitor
from lightkeeper.monitor.commands.printing import painted
from lightkeeper.monitor.commands.top import look_at
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS: Final = {1440: 900, 390: 844}
"""CSS pixels: a desk and a telephone."""
SCHEMES: Final = ("light", "dark")
PARTS: Final = ("course", "stacks", "done")
"""Sections of the page of an incident that get a picture of their own."""
_HTML: Final = "text/html; charset=utf-8"
_SVG: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="9999" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own, without the font that it would fetch from the network."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A page as it stood."""

    name: str
    url: str
    html: str


class Album:
    """Pages that stay open and follow the fleet. A moment passes in a second, thirty pictures take
    longer: what a page shows is kept as it stands, and drawn in every width and scheme later.
    """

    def __init__(self, browser: Browser, url: str, out: Path) -> None:
        self._browser, self._url, self._out = browser, url, out
        self._pages: dict[str, Page] = {}
        self._kept: list[Moment] = []

    def open(self, name: str, path: str) -> None:
        """One page, live."""
        page = self._browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(self._url + path, wait_until="load")
        self._pages[name] = page

    def shows(self, name: str, where: str, words: str, within_s: float) -> None:
        """Wait until a page says so: it follows the monitor, a moment behind."""
        said = self._pages[name].locator(where).filter(has_text=words)
        said.first.wait_for(state="attached", timeout=within_s * 1000)

    def has(self, name: str, what: str, within_s: float) -> bool:
        """Whether this part of a page comes; it is loaded again until then."""

        def seen() -> bool:
            page = self._pages[name]
            page.reload(wait_until="load")
            return page.locator(what).count() > 0

        with contextlib.suppress(AssertionError):
            return wait_for(seen, within_s=within_s, what=what)
        return False

    def keep(self, moment: str, *names: str) -> None:
        """These as they are now."""
        for name in names:
            page = self._pages[name]
            self._kept.append(Moment(f"{moment}-{name}", page.url, page.content()))

    def close(self, *names: str) -> None:
        """Pages that are not needed any more."""
        for name in names:
            self._pages.pop(name).context.close()

    def draw(self) -> None:
        """All that was kept, in every width and scheme."""
        for width, height in WIDTHS.items():
            for scheme in SCHEMES:
                context = self._browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme,
                    reduced_motion="reduce",
                )  # fmt: skip
                for moment in self._kept:
                    self._draw(context.new_page(), moment, f"{width}-{scheme}")
                context.close()

    def _draw(self, page: Page, moment: Moment, look: str) -> None:
        page.route("**/*.js", lambda route: route.abort())  # it would follow the fleet
        page.route(moment.url, lambda route: route.fulfill(body=moment.html, content_type=_HTML))
        page.goto(moment.url, wait_until="load")
        page.screenshot(path=self._out / f"{moment.name}-{look}.png", animations="disabled")
        for part in PARTS if moment.name.endswith("-incident") else ():
            section = page.locator(f"section#{part}")
            if section.count():
                section.screenshot(path=self._out / f"{moment.name}-{part}-{look}.png")
        page.close()


def terminal(url: str, out: Path, moment: str) -> None:
    """`status` and `top` as they are now, drawn by what draws them on a terminal."""
    monitor, width, height = Monitor(url), 104, 16
    status = monitor.ask(f"/v1/status?width={width}")["text"]
    top = look_at(monitor, {"sort": "busy"}, width, height)
    _svg(out / f"{moment}-status.svg", "lightkeeper status", width,
         lambda: painted(status))  # fmt: skip
    _svg(out / f"{moment}-top.svg", "lightkeeper top", width,
         lambda: painted(top))  # fmt: skip


def _svg(path: Path, title: str, width: int, draw: Callable[[], Segments]) -> None:
    with path.with_suffix(".txt").open("w") as aside:
        made = Console(record=True, width=width, file=aside, force_terminal=True, no_color=False)
        made.print(draw(), end="")
        made.save_svg(str(path), title=title, theme=MONOKAI, code_format=_SVG)
    path.with_suffix(".txt").unlink()
