"""Text from outside as it may be shown: no character that moves a terminal, or forges a line."""

from __future__ import annotations

import logging
import sys
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def escaped(text: str, keep: str = "") -> str:
    """With control, format (bidirectional overrides, too) and line characters as escapes, but for
    those to keep.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


class LineFormatter(logging.Formatter):
    """A record's message is one line, whatever is in it; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), "\n\t")


def log_to_stderr(level: int, words: str = FORMAT) -> None:
    """Set up logging for a process of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(words))
    logging.basicConfig(level=level, handlers=[handler])
