"""The process beside a rank: answers for it while it hangs, is stopped, or is dead.

Belongs here: reading the page, the operating system and torch's control plane; the HTTP
server; eviction of this rank; the black box. Never imports torch (about 30 MB instead of
300) and never judges who is healthy.
"""

from __future__ import annotations

from collections.abc import Mapping


class RefusalError(Exception):
    """Answers the request with a status and one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class SilentError(RefusalError):
    """Neither stacks nor torch's control plane gave an answer; the message says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)
