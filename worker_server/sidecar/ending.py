"""How a process ended, without being its parent; and whether memory ran out.

Linux 6.15 tells the wait status of a dead process to whoever holds its pidfd, once its parent has
collected it (`PIDFD_GET_INFO`, linux/pidfd.h). Until then it is a zombie, and field 52 of
/proc/PID/stat has the status. On an older kernel a collected process has taken it along.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from pathlib import Path

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, first version: mask, cgroup id, pid ... fsgid, exit_code; 64 bytes."""
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)"""
_INFO_EXIT = 1 << 3


def wait_status(pidfd: int, pid: int, start_ticks: int) -> int | None:
    """The wait status of a dead process; None where it cannot be known."""
    status = _collected(pidfd)
    if status is None:
        status = _zombie(pid, start_ticks)
    return _collected(pidfd) if status is None else status  # it may go between the two looks


def _collected(pidfd: int) -> int | None:
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _INFO_EXIT, *(0,) * 13)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:  # an older kernel, or another one's pid namespace
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None


def _zombie(pid: int, start_ticks: int) -> int | None:
    """Field 52, if this is still that process and we are told the truth.

    Who may not look into a process is told 0 there, which is also what a good end looks like. The
    kernel asks the same question (ptrace_may_access) before it opens `io`.
    """
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] != "Z" or int(fields[19]) != start_ticks:
            return None
        status = int(fields[49])
        if not status:
            (folder / "io").read_text(encoding="ascii")
    except (OSError, ValueError, IndexError):
        return None
    return status


def decode_status(status: int | None) -> tuple[int | None, str | None]:
    """Exit code and name of the signal, of which at most one is there."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, f"signal {number}"  # a real-time signal
    return os.WEXITSTATUS(status), None


class OomWatch:
    """Counts the OOM kills in the cgroup of a process; remembers where, while it lives."""

    def __init__(self, pid: int, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._file, self._key = _find_counter(pid, cgroups)
        self.before = self._count()
        """Kills up to the last look while the process was alive."""

    def look(self) -> None:
        """Take the count again; call while the process lives."""
        self.before = self._count()

    def kills(self) -> int | None:
        """OOM kills in the cgroup since the last look; None when it cannot be known."""
        now = self._count()
        return None if now is None or self.before is None else now - self.before

    def _count(self) -> int | None:
        if self._file is None:
            return None
        try:
            lines = self._file.read_text(encoding="ascii", errors="replace").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(self._key))
        except (OSError, ValueError, IndexError, StopIteration):
            return None


def _find_counter(pid: int, cgroups: Path) -> tuple[Path | None, str]:
    """`memory.events` of version 2, `memory.oom_control` of version 1.

    In a container the path is often that of the host: then the container's own root is meant.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None, ""
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots, name = [cgroups, cgroups / "unified"], "memory.events"
        elif "memory" in controllers.split(","):
            roots, name = [cgroups / "memory"], "memory.oom_control"
        else:
            continue
        for root in roots:
            for folder in (root / path.lstrip("/"), root):
                if (folder / name).is_file():
                    return folder / name, "oom_kill "
    return None, ""
