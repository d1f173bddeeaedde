"""What is asked for cannot be had: why, in one line, and what HTTP calls it."""

from __future__ import annotations

from collections.abc import Mapping


class RefusalError(Exception):
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class StacksError(RefusalError):
    """No stacks from outside; the message says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


class ControlPlaneError(RefusalError):
    """Torch's control plane did not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)
