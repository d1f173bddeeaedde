"""Who listens on a port of this host, as far as this user may see."""

from __future__ import annotations

from pathlib import Path

from lightkeeper.worker_server import home


def listener(port: int, proc: Path = Path("/proc")) -> str | None:
    """`python3 (pid 4711)`: the process that listens on a TCP port; None: nobody that can be seen.

    Processes of other users do not show their sockets.
    """
    links = {f"socket:[{row[9]}]" for row in home.listening(port, proc / "net")}
    for folder in proc.iterdir() if links else ():
        if folder.name.isdecimal() and _holds(folder, links):
            return f"{_name(folder)} (pid {folder.name})"
    return None


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
