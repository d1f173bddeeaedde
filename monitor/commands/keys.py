"""Keys of a terminal, one at a time, and its changes of size; all is put back at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Final

RESIZED: Final = "resized"
"""What a change of size reads as."""
_NAMES: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\x1b": "escape",
}  # fmt: skip


class Keys:
    """Waits for a key, a change of size, or a word of another thread."""

    def __init__(self, fd: int, wakes: int) -> None:
        self._fd, self._wakes = fd, wakes
        self._open = True

    def wait(self, timeout_s: float | None) -> list[str]:
        """Names of the keys that were struck; empty when the time is over or somebody woke us."""
        watched = [self._wakes, *([self._fd] if self._open else [])]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        found = []
        if self._wakes in ready and signal.SIGWINCH in os.read(self._wakes, 4096):
            found.append(RESIZED)
        if self._fd in ready:
            found += self._read()
        return found

    def _read(self) -> list[str]:
        struck = os.read(self._fd, 1024)
        self._open = bool(struck)  # the terminal is gone: nobody will ever strike a key
        return list(names_of(struck)) if struck else ["q"]


def names_of(struck: bytes) -> Iterator[str]:
    """Keys by name: sequences as `up`, characters as themselves."""
    while struck:
        length = next((n for n in (4, 3) if struck[:n] in _NAMES), 1)
        one, struck = struck[:length], struck[length:]
        if one == b"\x1b" and struck[:1] in (b"[", b"O"):  # a sequence that we do not know
            rest = 1
            while rest < len(struck) and not 0x40 <= struck[rest] <= 0x7E:
                rest += 1
            struck = struck[rest + 1 :]
            continue
        yield _NAMES.get(one) or one.decode("ascii", "replace")


@contextlib.contextmanager
def keys_of_terminal() -> Iterator[tuple[Keys, int]]:
    """Keys as they are struck, without Enter and without echo; and where to write to wake us up.

    SIGTERM and SIGHUP end us as SystemExit does, so that the screen is put back.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    old_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    old = {one: signal.signal(one, _end) for one in (signal.SIGTERM, signal.SIGHUP)}
    old[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _nothing)
    old[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # it would leave our screen
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield Keys(fd, reading), writing
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSANOW, before)
        for one, handler in old.items():
            signal.signal(one, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(reading)
        os.close(writing)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The pipe has it."""
