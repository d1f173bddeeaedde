"""Torch's profiler on demand."""

from __future__ import annotations


class ProfileError(Exception):
    """No profile; `status` is the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
