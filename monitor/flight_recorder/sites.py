"""Call sites: from a stack of frames to the line of the program that called."""

from __future__ import annotations

from typing import Any, Final

from monitor.flight_recorder.job import NONE
from monitor.flight_recorder.record import FlightRecordError

_FOREIGN: Final = (
    "/site-packages/", "/dist-packages/", "/lib/python", "/torch/", "/torchft/",
    "/worker_server/",  # an attached rank's calls pass through our own wrappers
)  # fmt: skip
_DEEPEST: Final = 2048
"""Frames of a stack that are looked at: Python stops at 1,000, and a pickle may lie."""
_NAMELESS: Final = ("", "<", "??")


class Sites:
    """Numbers the call sites of one dump."""

    def __init__(self) -> None:
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_text: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """Call sites by number."""
        return tuple(self._by_text)

    def of(self, frames: Any) -> int:
        """Number of the call site of a stack, innermost frame first; NONE without one.

        Stacks share their frames (a pickle's memo), so they are told apart by identity; the caller
        keeps them alive.
        """
        if not frames:
            return NONE
        frames = frames[:_DEEPEST]
        key = tuple(map(id, frames))
        number = self._by_frames.get(key)
        if number is None:
            text = _site(frames)
            number = self._by_text.setdefault(text, len(self._by_text)) if text else NONE
            self._by_frames[key] = number
        return number


def _site(frames: Any) -> str:
    """The nearest frame of the program itself, else the innermost that has a file."""
    if not isinstance(frames, list | tuple):
        raise FlightRecordError("frames are a list")
    fallback = ""
    for frame in frames:
        name, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(name, str) or not isinstance(function, str) or type(line) is not int:
            raise FlightRecordError("a frame is a file, a line and a name")
        if name.startswith(_NAMELESS[1:]) or not name:
            continue
        text = f"{name.rpartition('/')[2]}:{line} {function}"
        if name.endswith(".py") and not any(part in name for part in _FOREIGN):
            return text
        fallback = fallback or text
    return fallback
