"""Text from outside as it may be shown: no character that moves a terminal, or forges a line."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_PLAIN: Final = bytes((*b"\t\n", *range(0x20, 0x7F)))
ANSWERS: Final = ("text/plain", "application/json", "application/openmetrics-text")
"""What people read with curl."""


def escaped(text: str, keep: str = "", escape: Callable[[str], str] | None = None) -> str:
    """With escapes for control, format (bidirectional) and line characters but those to keep."""
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


ABOUT: Final = ("incident", "group", "rank")
"""Things that a record may be about (`extra=`); several of one kind are joined by commas."""
LEVELS: Final[Mapping[str, int]] = {
    level: logging.getLevelNamesMapping()[level.upper()]
    for level in ("debug", "info", "warning", "error")
}
FORMS: Final = ("text", "json")


def about(record: logging.LogRecord) -> dict[str, str]:
    values = ((name, getattr(record, name, None)) for name in ABOUT)
    return {name: str(value) for name, value in values if value}


class LineFormatter(logging.Formatter):
    """A record's message is one line, whatever is in it; a traceback keeps its lines, indented."""

    def formatTime(self, record: logging.LogRecord, _: str | None = None) -> str:  # noqa: N802 - logging's
        """RFC 3339, UTC."""
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), "\n\t").replace("\n", "\n    ")


class JsonFormatter(LineFormatter):
    """A record is one JSON object on one line, ASCII alone."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **about(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def formatter(form: str | None, words: str = FORMAT) -> LineFormatter:
    """For one of `FORMS`; anything else means text. `words`: the format of a text."""
    return JsonFormatter() if form == "json" else LineFormatter(words)


def log_to_stderr(level: int, form: str = "text") -> None:
    """Set up logging for a process of ours; others' libraries log INFO at most."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler])
    logging.getLogger("lightkeeper").setLevel(level)
