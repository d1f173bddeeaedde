"""Who this process is, so that another one on the same host can tell that it is gone."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def me() -> str:
    """A name that no other process ever has: host, PID, when and where it started."""
    return " ".join((*_whereabouts(os.getpid()), secrets.token_hex(4)))


def renamed(holder: str) -> str:
    """The same process under another name."""
    return " ".join((*holder.split(" ")[:-1], secrets.token_hex(4)))


def shown(holder: str) -> str:
    """A holder's name for people."""
    host, pid, *_ = (*holder.split(" "), "?", "?")
    return f"{host} (pid {pid})"


def gone(holder: str) -> bool:
    """Whether that process certainly runs no more; False wherever this cannot be known."""
    words = holder.split(" ")
    if len(words) != 6:
        return False
    host, pid, started, boot, space, _ = words
    mine = _whereabouts(os.getpid())
    if "?" in words or (host, boot, space) != (mine[0], mine[3], mine[4]) or not pid.isdigit():
        return False
    return _started(int(pid)) != started


def _whereabouts(pid: int) -> tuple[str, str, str, str, str]:
    return socket.gethostname() or "?", str(pid), _started(pid), _boot(), _space()


def _started(pid: int) -> str:
    """Ticks from the boot to its start; `-`: there is no such process, or only its zombie."""
    try:
        after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "-"
    except (OSError, ValueError):
        return "?"
    return "-" if after_name[0] in "ZX" else after_name[19]  # proc(5): state 3rd, start 22nd


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or "?"
    except OSError:
        return "?"


def _space() -> str:
    """PID namespace: the same number is another process in another one."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "?"
