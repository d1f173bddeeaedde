"""What a rank that stands still waits for in a system call: a file and the device it is on, a
socket, or that somebody reads its log.

Nothing here touches the file: its file system may be the one that does not answer.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

_RECEIVES: Final = {
    "x86_64": (0, 45, 47, 42, 7, 271),  # read, recvfrom, recvmsg, connect, poll, ppoll
    "aarch64": (63, 207, 212, 203, -1, 73),
}
_BY_FILE: Final = {
    "x86_64": {0, 1, 3, 5, 17, 18, 19, 20, 72, 73, 74, 75, 77, 217, 285, 295, 296},
    "aarch64": {25, 32, 46, 47, 57, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83},
}
"""read, write, close, fstat, pread, pwrite, readv, writev, fcntl, flock, fsync, fdatasync,
ftruncate, getdents, fallocate, preadv, pwritev: the first argument is a file."""
_BY_PATH: Final = {
    "x86_64": {2: 0, 4: 0, 6: 0, 21: 0, 83: 0, 87: 0, 257: 1, 258: 1, 262: 1, 263: 1, 332: 1},
    "aarch64": {34: 1, 35: 1, 48: 1, 56: 1, 79: 1, 291: 1},
}
"""open, stat, lstat, access, mkdir, unlink and their forms with a folder: which argument is a
path."""
_WRITES: Final = {"x86_64": {1, 20}, "aarch64": {64, 66}}
_UNREAD: Final = {
    fd: f"a reader of its log: its {name} is a full pipe, and nobody reads it"
    for fd, name in ((1, "stdout"), (2, "stderr"))
}
_PATH_MOST: Final = 4096


def syscall_of(pid: int, thread: int | None = None, proc: Path = Path("/proc")) -> list[int]:
    """Number and arguments of a thread's system call (else the main one's); empty: hidden."""
    try:
        words = (proc / f"{pid}/task/{thread or pid}/syscall").read_text("ascii").split()
        return [int(words[0]), *(int(word, 16) for word in words[1:7])]
    except (OSError, ValueError):  # `running`
        return []


def awaited_by(pid: int, thread: int | None) -> int | None:
    """Inode of the socket that a thread, else the main one, waits for in a system call.

    For `poll` the first file counts: Python waits so for one socket with a timeout.
    """
    numbers = _RECEIVES.get(platform.machine(), ())
    try:
        number, file, *_ = syscall_of(pid, thread)
        if number not in numbers:
            return None
        if number in numbers[4:]:
            with Path(f"/proc/{pid}/mem").open("rb") as memory:
                memory.seek(file)
                file = int.from_bytes(memory.read(4), sys.byteorder)
        kind, _, inode = os.readlink(f"/proc/{pid}/fd/{file}").partition(":[")
        return int(inode[:-1]) if kind == "socket" else None
    except (OSError, ValueError, OverflowError):
        return None


def blocked_on(pid: int, thread: int | None, proc: Path = Path("/proc")) -> str | None:
    """`/data/x.bin on /dev/nvme0n1 (ext4)`; None: it waits for no file, as far as can be seen."""
    try:
        number, *arguments = syscall_of(pid, thread, proc)
        if number in _BY_FILE.get(platform.machine(), ()):
            path = os.readlink(proc / f"{pid}/fd/{arguments[0]}")
            if path[:5] == "pipe:" and number in _WRITES[platform.machine()]:
                logs = [fd for fd in (1, 2) if os.readlink(proc / f"{pid}/fd/{fd}") == path]
                return _UNREAD[logs[0]]
        else:
            at = _BY_PATH.get(platform.machine(), {})[number]
            with (proc / f"{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(arguments[at])
                path = memory.read(_PATH_MOST).partition(b"\0")[0].decode(errors="replace")
            path = os.path.join(os.readlink(proc / f"{pid}/cwd"), path)
        return f"{path} on {_device(proc / f'{pid}/mountinfo', path)}" if path[:1] == "/" else None
    except (OSError, ValueError, KeyError, IndexError, OverflowError):
        return None


def _device(mounts: Path, path: str) -> str:
    """The device of the mount with the longest mount point above the path."""
    best = "", "an unknown device"
    for line in mounts.read_text(errors="replace").splitlines():
        words, _, of = line.partition(" - ")
        point, (kind, source, *_) = words.split()[4], of.split()
        point = point.encode().decode("unicode_escape")  # spaces are \\040
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = point, f"{source} ({kind})"
    return best[1]
