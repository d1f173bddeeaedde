"""The kernel's log, from /dev/kmsg: errors of devices, hung tasks, OOM kills, crashes."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from lightkeeper.worker_server.sidecar.files import sized
from lightkeeper.worker_server.sidecar.witnesses import TABLES
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

_KMSG: Final = (True, 1, 11)
"""A device, and its numbers (Documentation/admin-guide/devices.txt)."""
_RECORD: Final = re.compile(r"([0-9]{1,19}),([0-9]{1,19}),([0-9]{1,19})(?:,[^;]*)?;(.{,1024})")
"""Priority, sequence, microseconds since boot, text."""
_RECORD_BYTES: Final = 8192
_RECORDS_MOST: Final = 2000
"""In one look."""
_DUMP_S: Final = 10.0
"""The lines of one OOM kill come within this time."""
_UNKNOWN: Final = re.compile(r"(, link| in| \(limit) \?\)?$")
_NO_RIGHT: Final = "not permitted: grant CAP_SYSLOG, or set kernel.dmesg_restrict=0"
_HELP: Final = {
    errno.EPERM: _NO_RIGHT, errno.EACCES: _NO_RIGHT,
    errno.ENOENT: "there is no /dev/kmsg: give the container that device",
}  # fmt: skip
_INITIAL_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the initial PID namespace (linux/proc_ns.h, PROC_PID_INIT_INO)."""


class _Form(NamedTuple):
    """One form of line, see the table."""

    code: str
    weight: str
    pattern: re.Pattern[str]
    text: str
    device: str = ""


def _form(code: str, weight: str, pattern: str, *more: str) -> _Form:
    for name, part in TABLES["kernel_log"]["parts"].items():
        pattern = pattern.replace(f"{{{name}}}", part)
    return _Form(code, weight, re.compile(pattern, re.ASCII), *more)


_FORMS: Final = [_form(*row) for row in TABLES["kernel_log"]["forms"]]


@lru_cache(256)
def _fitting(text: str) -> tuple[_Form, dict[str, str]] | None:
    """The first form that fits, and its parts; equal lines come in floods."""
    matches = ((form, form.pattern.search(text)) for form in _FORMS)
    return next(((form, match.groupdict("?")) for form, match in matches if match), None)


class KernelLog(MachineWitness):
    """Reads the kernel's log from its oldest line on."""

    name = "kernel log"
    every_s = 0.5
    kept_s = 3600.0, 3600.0

    def __init__(
        self, root: Path = Path("/"), ours: Callable[[int], int | None] | None = None
    ) -> None:
        """`ours`: a pid of the kernel's in our namespace, if it is known."""
        super().__init__(root)
        self._ours = ours or our_pid
        self._fd: int | None = None
        self._rest = b""
        self._sequence: int | None = None
        self._limit = -_DUMP_S, 0
        """When it was said, and how many bytes."""
        self._gpus: list[str] = []
        """Addresses of NVIDIA's in the order of nvidia-smi's numbers, that of the bus."""
        with suppress(OSError):
            names = os.listdir(root / "proc/driver/nvidia/gpus")
            self._gpus = [_short(name) for name in sorted(names)]

    def _read(self) -> None:
        try:
            if self._fd is None:
                self._fd = _opened(self.root)
            for record in self._records(self._fd):
                self.take(record)
        except OSError as exc:
            raise CannotReadError(_HELP.get(exc.errno or 0, exc.strerror or str(exc))) from exc

    def _records(self, fd: int) -> Iterator[str]:
        """One a read, many of a file; a line with a blank first belongs to the one before."""
        for _ in range(_RECORDS_MOST):
            try:
                blob = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # lines were overwritten: the sequence shows how many
                continue
            if not blob:
                return
            *lines, self._rest = (self._rest + blob).split(b"\n")
            self._rest = self._rest[:_RECORD_BYTES]
            yield from (line.decode("utf-8", "replace") for line in lines)

    def take(self, record: str) -> None:
        """Take one record; what is none, or not the kernel's own (facility 0), is dropped."""
        if (match := _RECORD.match(record)) is None:
            return
        priority, sequence, at_s = int(match[1]), int(match[2]), int(match[3]) / 1e6
        if self._sequence is not None and sequence > self._sequence + 1:
            lost = sequence - self._sequence - 1
            self.saw(Weight.CONTEXT, "lines-lost", "lines were lost", times=lost, at_s=at_s)
        self._sequence = sequence
        if priority < 8 and (fits := _fitting(match[4])) is not None:
            self._take(fits[0], dict(fits[1]), at_s)

    def _take(self, form: _Form, parts: dict[str, str], at_s: float) -> None:
        if form.code == "oom-limit":
            self._limit = at_s, int(parts["kb"][:15]) * 1024
            return
        parts["part"] = TABLES["kernel_log"]["sxid"].get(parts.get("n", "")[:2], "unknown part")
        short = _short(parts.get("bdf", ""))  # by its address where its number is not known
        parts["gpu"] = f"GPU {self._gpus.index(short) if short in self._gpus else short}"
        parts["device"] = device = form.device.format_map(parts)
        if at_s - self._limit[0] < _DUMP_S:
            parts["limit"] = sized(self._limit[1])
        parts["mcg"] = parts.get("mcg", "")[-80:]
        code, number = form.code.format_map(parts), parts.get("pid", "?")
        text = _UNKNOWN.sub("", form.text.format_map({"limit": "?", **parts}))
        about = {"nfs": "", "oom-kill": number}.get(code, text)
        _, last_s, _ = self._rows.get((code, device, about), (0.0, -_DUMP_S, None))
        if code == "oom-kill" and at_s - last_s < _DUMP_S:
            return  # its other line
        weight, pids = Weight(form.weight), list[int]()
        if number.isdecimal() and len(number) < 11:
            if (pid := self._ours(int(number))) is None:
                weight = Weight.CONTEXT  # whose process it is, is not known
            else:
                pids = [pid]
        self.saw(weight, code, text, device=device, about=about, pids=pids, times=1, at_s=at_s)


def _short(bdf: str) -> str:
    """`3b:00` of 0000:3b:00.0, as domains are written in two lengths; with its domain if not 0."""
    domain, _, rest = bdf.lower().partition(":")
    rest = rest.partition(".")[0]
    return rest if not domain.strip("0") else f"{domain[-4:]}:{rest}"


def our_pid(pid: int) -> int | None:
    """A pid of the initial namespace in ours; None: it cannot be known."""
    try:
        own = os.stat("/proc/self/ns/pid").st_ino
        if own == _INITIAL_NAMESPACE:
            return pid
        if os.stat(f"/proc/{pid}/ns/pid").st_ino != own:
            return None
        words = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").partition("NSpid:")[2]
        first, *_, last = map(int, words.partition("\n")[0].split())
    except (OSError, ValueError):
        return None
    return last if first == pid else None


def _opened(root: Path) -> int:
    fd = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(fd)
    device = stat.S_ISCHR(facts.st_mode), os.major(facts.st_rdev), os.minor(facts.st_rdev)
    if root == Path("/") and device != _KMSG:
        os.close(fd)
        raise OSError(errno.ENODEV, "/dev/kmsg is not the kernel's log")
    return fd
