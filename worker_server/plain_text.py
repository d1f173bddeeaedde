"""Text from outside as it may be shown: no character that moves a terminal, or forges a line."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_PLAIN: Final = bytes((*b"\t\n", *range(0x20, 0x7F)))
ANSWERS: Final = ("text/plain", "application/json", "application/openmetrics-text")
"""What people read with curl."""


def escaped(text: str, keep: str = "", escape: Callable[[str], str] | None = None) -> str:
    """With control, format (bidirectional overrides, too) and line characters as escapes, but for
    those to keep.
    """
    if text.isprintable():
        return text
    change = escape or _in_python
    return "".join(char if char.isprintable() or char in keep else change(char) for char in text)


def _in_python(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _in_json(char: str) -> str:
    """Means the same to a program."""
    return re.sub("....", r"\\u\g<0>", char.encode("utf-16-be", "surrogatepass").hex())


def escaped_body(body: bytes, mimetype: str | None) -> bytes:
    """An answer's body, escaped as text, or as JSON, where people read such answers."""
    odd = mimetype in ANSWERS and body.translate(None, _PLAIN)
    if not odd or odd.decode(errors="surrogateescape").isprintable():
        return body
    change = _in_json if mimetype == "application/json" else _in_python
    return escaped(body.decode(errors="replace"), "\n\t", change).encode()


class LineFormatter(logging.Formatter):
    """A record's message is one line, whatever is in it; a traceback keeps its lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), "\n\t").replace("\n", "\n    ")


def log_to_stderr(level: int, words: str = FORMAT) -> None:
    """Set up logging for a process of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(words))
    logging.basicConfig(level=level, handlers=[handler])
