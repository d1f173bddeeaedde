"""The page `/runbooks`, where shipped alerts lead: docs/on-call.md, one section for each alert."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from markupsafe import Markup, escape

from lightkeeper.monitor.show.templating import render

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "on-call.md"
"""The same place in a checkout and in a wheel."""


def runbooks_page() -> str:
    """Raises FileNotFoundError: the page is not installed."""
    _, *parts = re.split(r"(?m)^### (\w+)$", PAGE.read_text(encoding="utf-8"))
    books = [
        (name, [_prose(paragraph) for paragraph in text.strip().split("\n\n")])
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    return render("runbooks.html", books=books)


def _prose(text: str) -> Markup:
    """One paragraph; links to other pages of the manual are only their words."""
    html = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(" ".join(text.split()))))
    html = re.sub(r"\[([^\]]*)\]\((#[\w-]*)\)", r'<a href="\2">\1</a>', html)
    return Markup(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", html))  # noqa: S704 - escaped above
