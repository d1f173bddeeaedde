"""Where a process's cgroups lie in the file system, and their memory limits."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_NO_LIMIT: Final = 1 << 60
"""Of version 1."""


class Level(NamedTuple):
    """A cgroup of a process, or one above it."""

    name: str
    folder: Path

    def limit(self) -> int | None:
        """How many bytes of memory it may use; None: all, or it cannot be read."""
        limits = []
        for name in ("memory.high", "memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((self.folder / name).read_text("ascii")))
        return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def sized(number: int) -> str:
    """`512 MiB`."""
    mebibytes = number / 2**20
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
