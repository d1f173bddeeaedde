"""Reading what the kernel shows in files; a process's cgroups and their memory limits."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final, NamedTuple


def text_of(path: Path) -> str | None:
    """A file's content without blanks around; None: it is not there, or cannot be read."""
    try:
        return needed(path)
    except OSError:
        return None


def needed(path: Path) -> str:
    """The content of a file without which a witness is blind; raises OSError."""
    return path.read_text("utf-8", "replace").strip()


def number(path: Path) -> int | None:
    """A file's number; None: there is none, as in `max` or `N/A`."""
    try:
        return int(path.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None


def table(path: Path) -> dict[str, int]:
    """The lines `NAME NUMBER` of a file; empty if it cannot be read."""
    rows = (line.split() for line in (text_of(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


_NO_LIMIT: Final = 1 << 60
"""Of version 1."""


class Level(NamedTuple):
    """A cgroup of a process, or one above it."""

    name: str
    folder: Path

    def limit(self) -> int | None:
        """How many bytes of memory it may use; None: all, or it cannot be read."""
        names = ("memory.high", "memory.max", "memory.limit_in_bytes")
        limits = (number(self.folder / name) for name in names)
        return min((n for n in limits if n is not None and n < _NO_LIMIT), default=None)


def sized(nbytes: int) -> str:
    """`512 MiB`."""
    mebibytes = nbytes / 2**20
    return f"{mebibytes / 1024:.4g} GiB" if mebibytes >= 1024 else f"{mebibytes:.4g} MiB"


def levels(top: Path, lines: str, controller: str = "") -> tuple[Level, ...]:
    """A process's cgroup and those above it, the innermost first: of version 1 where the controller
    is there, else of version 2.

    A container often sees the host's path but only its own part of the tree: then that is meant.

    Args:
        top: `/sys/fs/cgroup`.
        lines: Of the process's /proc/PID/cgroup.

    Raises:
        OSError: it is outside of our own cgroup namespace, in another container.
    """
    paths: dict[str, str] = {}
    for line in lines.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path.strip("/")))
    if controller and controller in paths:
        top /= controller
    else:
        controller, top = "", top / "unified" if (top / "unified").is_dir() else top
    words = [word for word in paths.get(controller, "").split("/") if word]
    if ".." in words:
        raise OSError(errno.EACCES, "a cgroup of another container", "/".join(words))
    words = words if top.joinpath(*words).is_dir() else []
    ends = range(len(words), -1, -1)
    return tuple(Level("/" + "/".join(words[:end]), top.joinpath(*words[:end])) for end in ends)
