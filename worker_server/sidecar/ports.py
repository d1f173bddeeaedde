"""Who listens on a port of this host, as far as this user may see."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LISTENS: Final = "0A"
"""State of a listening socket in /proc/net/tcp."""


def listener(port: int, proc: Path = Path("/proc")) -> str | None:
    """`python3 (pid 4711)`: the process that listens on a TCP port; None: nobody that can be seen.

    Processes of other users do not show their sockets.
    """
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(proc / "net" / name, port)}
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in proc.iterdir() if links else ():
        if folder.name.isdecimal() and _holds(folder, links):
            return f"{_name(folder)} (pid {folder.name})"
    return None


def _listening(table: Path, port: int) -> list[str]:
    """Inodes of the sockets that listen on the port."""
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    except (OSError, UnicodeDecodeError):
        return []
    return [
        row[9]
        for row in rows
        if len(row) > 9 and row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
    ]


def _holds(folder: Path, links: set[str]) -> bool:
    try:
        return any(str(fd.readlink()) in links for fd in (folder / "fd").iterdir())
    except OSError:  # gone, or not ours
        return False


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a process"
