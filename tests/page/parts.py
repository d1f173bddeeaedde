"""A page in parts: the markup of the header's chips and of each part of `main`, by id, in order."""

from __future__ import annotations

from html.parser import HTMLParser

from lightkeeper.monitor.show.templating import Page

_VOID = {"br", "hr", "img", "input", "link", "meta"}


def html_of(page: Page) -> str:
    return page.html.decode()


def title_of(page: Page) -> str:
    """As the tab has it."""
    return html_of(page).partition("<title>")[2].partition(" · lightkeeper</title>")[0]


def parts_of(page: Page) -> dict[str, str]:
    """What a script puts into the page is left out."""
    return _Parts(html_of(page)).found


class _Parts(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._html, self._open = html, list[tuple[str, str, int]]()
        self._lines = [0]
        for line in html.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.feed(html)

    def _at(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def handle_starttag(self, tag: str, attrs) -> None:
        if tag not in _VOID:
            self._open.append((tag, dict(attrs).get("id") or "", self._at()))

    def handle_endtag(self, tag: str) -> None:
        opened, name, began = self._open.pop()
        assert opened == tag, f"{opened} is closed by {tag}"
        inside = self._open[-1][1] if self._open else ""
        if name == "chips" or (inside == "main" and name not in ("", "away")):
            self.found[name] = self._html[began : self._at()] + f"</{tag}>"
