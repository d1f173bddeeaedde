"""A new gate takes over from the worker of one that died: `orphan`, seen from the other end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any, Final

from monitor.gate import bequest
from monitor.gate.bequest import Page
from monitor.gate.keeper import SILENT_S, Estate

log = logging.getLogger("lightkeeper.gate")

_NAMES: Final = Path("/proc/net/unix")


def orphans() -> list[bytes]:
    """Names of the workers on this host that lost their keeper."""
    with contextlib.suppress(OSError):
        lines = _NAMES.read_bytes().split(b"\n")
        found = {line.rpartition(b" ")[2] for line in lines}
        return sorted(
            b"\0" + name[1:] for name in found if name[1:].startswith(bequest.ORPHANS.encode())
        )
    return []


def told(name: bytes) -> str:
    """`127.0.0.1:29511 (pid 4711)`, for a person."""
    host, port, pid = name.decode("utf-8", "replace").rsplit("/", 2)
    host = host.rpartition("/")[2]
    return f"{f'[{host}]' if ':' in host else host}:{port} (pid {pid})"


def succeed(address: Any, *, silent_s: float = SILENT_S) -> Estate | None:
    """Take over from a worker at this socket address whose keeper died; None: there is none.

    One that does not answer for `silent_s` is ended, as its keeper would have done.
    """
    mine = bequest.successor_address(address, "")
    for name in orphans():
        if name.startswith(mine):
            found = _take(name, silent_s)
            if found is not None:
                return found
    return None


def _take(name: bytes, silent_s: float) -> Estate | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        bequest.roomy(channel)
        channel.settimeout(silent_s)
        try:
            channel.connect(name)
        except OSError:
            return None
        if not bequest.same_user(channel):
            return None
        estate = _Taking(channel)
        try:
            if estate.complete():
                return estate.found
        except TimeoutError:
            if estate.found is None:
                log.warning("the worker at %s does not answer: it is ended", told(name))
                with contextlib.suppress(OSError):
                    os.kill(bequest.peer(channel)[0], signal.SIGKILL)
        except OSError:
            pass
        if estate.found is not None:
            estate.found.close()
        return None


class _Taking:
    """What came so far."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.found: Estate | None = None

    def complete(self) -> bool:
        """Whether it is ours: only after the other side's last word do we own anything."""
        while True:
            data, files = bequest.receive(self._channel)
            kind = data[:1]
            if kind == bequest.LISTENERS and self.found is None:
                *others, page = files
                self.found = Estate([socket.socket(fileno=file) for file in others], Page(page))
            elif self.found is None or not data:
                return False
            elif kind == bequest.ALL:
                bequest.send(self._channel, bequest.READY)
            elif kind == bequest.GO:
                return True
            else:
                self.found.note(data, files)


def describe(estate: Estate) -> dict[str, Any]:
    """For the log."""
    asked = sum(len(each) for each in estate.asked.values())
    return {"clients": len(estate.clients), "quorum requests": asked}
