"""What stands on a node for a person who finds it there, and for us who find it again. Pure."""

from __future__ import annotations

import re
from typing import Final

from monitor.names import IncidentId

_NOT_OWNER: Final = re.compile(r"[^A-Za-z0-9._-]+")
_BAD: Final = re.compile(r"[^ -~]+")
OWNER_MAX_CHARS: Final = 40


def owner_name(text: str) -> str:
    """A name for one quarantine list among those that may mark the same nodes."""
    return _NOT_OWNER.sub("-", text).strip("-")[:OWNER_MAX_CHARS] or "default"


def mark(owner: str) -> str:
    """What every reason of ours begins with."""
    return f"lightkeeper[{owner}]: "


def marked(owner: str, reason: str, incident_id: IncidentId | None, max_chars: int) -> str:
    """A reason of ours: one line of plain ASCII without quotes, of at most so many characters.

    A shell, a hostlist or a config file may meet it later: nothing in it means anything to them.
    """
    incident = "" if incident_id is None else f"incident {incident_id}: "
    return plain(mark(owner) + incident + reason, max_chars)


def plain(text: str, max_chars: int) -> str:
    """One line of plain ASCII without quotes, backslashes, backticks or dollars."""
    line = " ".join(_BAD.sub(" ", text).split())
    line = line.translate({ord(char): "'" for char in '"`'} | {ord("\\"): "/", ord("$"): "S"})
    line = line.replace("'", "")
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."
