"""Pictures of pages, in every width and scheme, and of the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

from monitor.commands.paint import Painted
from monitor.commands.status import look_at
from monitor.terminal.short import short
from monitor.terminal.topscreen import Top

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS: Final = {1440: 900, 390: 844}
"""CSS pixels: a desk and a telephone."""
SCHEMES: Final = ("light", "dark")
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


class Album:
    """Pages that stay open and follow the fleet, so that a moment is not missed by loading."""

    def __init__(self, browser: Browser, url: str, out: Path) -> None:
        self._browser, self._url, self._out = browser, url, out
        self._pages: dict[tuple[str, int, str], Page] = {}

    def open(self, name: str, path: str) -> None:
        """One page, in every width and scheme."""
        for width, height in WIDTHS.items():
            for scheme in SCHEMES:
                context = self._browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme,
                    reduced_motion="reduce",
                )  # fmt: skip
                page = context.new_page()
                page.goto(self._url + path, wait_until="load")
                self._pages[name, width, scheme] = page

    def take(self, moment: str, *names: str) -> None:
        """A picture of each of these as they are now."""
        for name, width, scheme in self._pages:
            if name in names:
                path = self._out / f"{moment}-{name}-{width}-{scheme}.png"
                self._pages[name, width, scheme].screenshot(path=path, animations="disabled")

    def close(self, *names: str) -> None:
        """Pages that are not needed any more."""
        for key in [key for key in self._pages if key[0] in names]:
            self._pages.pop(key).context.close()


def terminal(url: str, out: Path, moment: str) -> None:
    """`status` and `top` as they are now, drawn by what draws them on a terminal."""
    seen = look_at(argparse.Namespace(monitor=url))
    width, height = 104, 16
    _svg(out / f"{moment}-status.svg", "lightkeeper status", width,
         lambda: Painted(short(seen, 10, width, lambda _: "")))  # fmt: skip
    _svg(out / f"{moment}-top.svg", "lightkeeper top", width,
         lambda: Painted(Top().screen(seen, width, height)))  # fmt: skip


def _svg(path: Path, title: str, width: int, draw: Callable[[], Painted]) -> None:
    with path.with_suffix(".txt").open("w") as aside:
        made = Console(record=True, width=width, file=aside, force_terminal=True, no_color=False)
        made.print(draw(), end="")
        made.save_svg(str(path), title=title, theme=MONOKAI, code_format=_SVG)
    path.with_suffix(".txt").unlink()
