"""A terminal of our own: what a command writes on it, how many cells it has, keys struck on it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator

from tests.monitor.process import ROOT, environment
from tests.waiting import wait_for

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""The other screen, and back."""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")
_HOME = re.compile(r"\x1b\[(?:1;1)?H")


class Terminal:
    """One command on a terminal."""

    def __init__(self, *words: str, width: int = 100, height: int = 16, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.slave = slave
        self.resize(width, height, tell=False)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lightkeeper.monitor.cli", *words],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=ROOT,
            env=environment(TERM="xterm-256color", PYTHONUNBUFFERED="1", **env),
        )  # fmt: skip
        self._said: list[str] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError as exc:
                if exc.errno in (errno.EIO, errno.EBADF):
                    return
                raise
            with self._lock:
                self._said.append(data.decode("utf-8", "replace"))

    @property
    def raw(self) -> str:
        with self._lock:
            return "".join(self._said)

    @property
    def screen(self) -> str:
        """What was drawn last, without colours."""
        return _SEQUENCE.sub("", _HOME.split(self.raw)[-1]).replace("\r", "")

    def strike(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        if tell:  # the kernel tells the foreground group of a controlling terminal; this is none
            self.process.send_signal(signal.SIGWINCH)

    def until(self, words: str, *, within_s: float = 40.0) -> str:
        """The screen once these words are on it."""

        def seen() -> str | None:
            shown = self.screen
            return shown if words in shown else None

        return wait_for(seen, within_s=within_s, what=f"{words!r} on the screen")

    def ended(self, within_s: float = 30.0) -> int:
        return self.process.wait(within_s)

    def put_back(self) -> bool:
        """Whether the terminal is as it was: its modes, its screen, its cursor."""
        raw = self.raw
        return (
            termios.tcgetattr(self.slave) == self.before
            and raw.rfind(LEAVE) > raw.rfind(ENTER) >= 0
            and raw.rfind(SHOW) > raw.rfind(HIDE)
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.slave)
        self._thread.join(5)
        os.close(self._master)


@contextlib.contextmanager
def terminal(*words: str, width: int = 100, height: int = 16, **env: str) -> Iterator[Terminal]:
    made = Terminal(*words, width=width, height=height, **env)
    try:
        yield made
    finally:
        made.close()
