"""The tail of the rank's stderr, where that is a file.

The file is opened while the rank lives, so that it can be read when the rank, or the name of the
file, is gone. Where stderr is a pipe, a terminal or a socket, what was written is somebody
else's: then the answer says so, and how to have it in a file.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from worker_server import wire
from worker_server.run_dir import parent_of

_LINES = 64
_BYTES = 16 * 1024
_REMEDY = "with torchrun --redirects 3 --log-dir DIR, or with 2> FILE, it would be here"


class StderrTail:
    """Follows file descriptor 2 of one process."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._fd: int | None = None
        self._inode: tuple[int, int] | None = None
        self._seen: tuple[str, str] | None = None
        self._path = ""
        self._sharers = 0
        self.shared = False
        """Whether others than its launchers wrote to the same file: then what it ends with may be
        theirs."""
        self._problem = "it was not looked at while the rank lived"

    def look(self) -> None:
        """Hold what stderr is now; call while the process lives. Cheap when nothing changed."""
        link = self._proc / str(self._pid) / "fd" / "2"
        try:
            seen = str(link.readlink()), self._file_number()
            if seen == self._seen:
                return
            self._release()
            facts = link.stat()
            self._inode, self._seen = (facts.st_dev, facts.st_ino), seen
            self._path = seen[0]
            if stat.S_ISREG(facts.st_mode):
                self._fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                sharers = self._find_sharers()
                self._sharers = len(sharers)
                self.shared = bool(sharers - self._launchers())
            else:
                kind = _kind(facts.st_mode, self._path)
                self._problem = f"stderr is {kind}: what was written there is not kept; {_REMEDY}"
        except FileNotFoundError:
            self._release()
            self._problem = "stderr is closed"
        except OSError as exc:
            self._problem = f"stderr cannot be opened: {exc.strerror}"

    def _file_number(self) -> str:
        """The file's number as the kernel has it (Linux 5.14), without asking its file system: one
        on a server that is away would hold who asks, once a second, for ever.
        """
        info = self._proc / str(self._pid) / "fdinfo" / "2"
        try:
            lines = info.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return ""
        return " ".join(line for line in lines if line.startswith(("mnt_id:", "ino:")))

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._inode = self._seen = None

    def _find_sharers(self) -> set[int]:
        """Other processes that write to the same file now, as far as we may look."""
        sharers = set()
        for entry in self._proc.iterdir():
            if not entry.name.isdecimal() or entry.name == str(self._pid):
                continue
            for name in ("1", "2"):
                try:
                    facts = (entry / "fd" / name).stat()
                except OSError:  # gone, or not ours
                    continue
                if (facts.st_dev, facts.st_ino) == self._inode:
                    sharers.add(int(entry.name))
                    break
        return sharers

    def _launchers(self) -> set[int]:
        """Its parent, that one's parent, and so on."""
        found: set[int] = set()
        pid = parent_of(self._pid, self._proc)
        while pid and pid not in found:
            found.add(pid)
            pid = parent_of(pid, self._proc)
        return found

    def read(self) -> tuple[wire.Trace | None, str | None]:
        """The last lines, or why there are none."""
        if self._fd is None:
            return None, self._problem
        try:
            facts = os.fstat(self._fd)
            blob = os.pread(self._fd, _BYTES, max(0, facts.st_size - _BYTES))
        except OSError as exc:
            return None, f"stderr cannot be read: {exc.strerror}"
        if not blob:
            return None, f"nothing was written to {self._path}"
        text = blob.decode(errors="replace")
        lines = text.splitlines(keepends=True)
        if facts.st_size > _BYTES:
            lines = lines[1:] or lines  # the first one is cut
        shared = ""
        if self._sharers:
            shared = f" (shared with {self._sharers} more process(es) when it was opened)"
        age_s = max(0.0, time.time() - facts.st_mtime)
        return wire.Trace("".join(lines[-_LINES:]), f"{self._path}{shared}", age_s), None


def _kind(mode: int, path: str) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a terminal" if path.startswith(("/dev/pts", "/dev/tty")) else path
