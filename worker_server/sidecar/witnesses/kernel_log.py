"""The kernel's log, from /dev/kmsg: errors of devices, hung tasks, OOM kills, crashes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.machine import weightiest
from lightkeeper.worker_server.sidecar.process import limit_of, sized
from lightkeeper.worker_server.sidecar.witnesses import kernel_table as table
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight

_KMSG: Final = (1, 11)
_RECORD_BYTES: Final = 8192
_TEXT_MOST: Final = 1024
_RECORDS_MOST: Final = 2000
"""In one look."""
_KEPT_S: Final = 3600.0
_EVENTS_MOST: Final = 256
_DUMP_S: Final = 10.0
"""The lines of one OOM kill come within this time."""
_UNLIMITED_KB: Final = 1 << 50
_INITIAL_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the initial PID namespace (linux/proc_ns.h, PROC_PID_INIT_INO)."""


@dataclass(slots=True)
class Event:
    """What one or more equal lines said; times are the kernel's, in seconds since boot."""

    code: str
    weight: Weight
    text: str
    device: str = ""
    pid: int | None = None
    """The kernel's, of the initial namespace."""
    pids: tuple[int, ...] = ()
    at_s: float = 0.0
    since_s: float = 0.0
    count: int = 1


class KernelLines:
    """Turns records of /dev/kmsg into events; knows no file."""

    def __init__(
        self,
        gpus: Sequence[str] = (),
        cgroups: Path = Path("/sys/fs/cgroup"),
        ours: Callable[[int], int | None] | None = None,
    ) -> None:
        """`gpus`: PCI addresses of NVIDIA's GPUs, in the order of their numbers; `ours`: a pid of
        the kernel's in our namespace, if it is known.
        """
        self._ours = ours or our_pid
        self._gpus = [*gpus]
        self._cgroups = cgroups
        self._events: dict[tuple[Any, ...], Event] = {}
        self._sequence: int | None = None
        self._limit: tuple[float, int] | None = None
        self._ooms: dict[int, float] = {}

    def take(self, record: str) -> None:
        """Take one record, `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT`; one that is none, or
        was not written by the kernel (facility 0), is dropped.
        """
        head, found, text = record.partition(";")
        cells = head.split(",")
        if not found or len(cells) < 3 or not all(
            cell.isascii() and cell.isdecimal() and len(cell) < 20 for cell in cells[:3]
        ):  # fmt: skip
            return
        priority, sequence, stamp_us = map(int, cells[:3])
        at_s = stamp_us / 1e6
        if self._sequence is not None and sequence > self._sequence + 1:
            lost = sequence - self._sequence - 1
            self._add(Event("lines-lost", Weight.CONTEXT, "lines were lost", count=lost), at_s)
        self._sequence = sequence
        if priority >> 3 == 0 and (event := self._event(text[:_TEXT_MOST], at_s)) is not None:
            self._add(event, at_s)

    def events(self, now_s: float) -> list[Event]:
        """Those of the last hour; `now_s`: seconds since boot."""
        self._events = {
            key: event for key, event in self._events.items() if now_s - event.at_s < _KEPT_S
        }
        return [*self._events.values()]

    def _add(self, event: Event, at_s: float) -> None:
        key = event.code, event.text, event.device, event.pid
        known = self._events.pop(key, None)
        event.at_s = event.since_s = at_s
        if event.pid is not None and (pid := self._ours(event.pid)) is not None:
            event.pids = (pid,)
        elif event.pid is not None:  # whose process it is, is not known
            event.weight = Weight.CONTEXT
        if known is not None:
            event.since_s, event.count = known.since_s, known.count + event.count
        self._events[key] = event  # the latest stand last
        if len(self._events) > _EVENTS_MOST:
            light = (key for key, each in self._events.items() if each.weight is Weight.CONTEXT)
            del self._events[next(light, next(iter(self._events)))]

    def _event(self, text: str, at_s: float) -> Event | None:
        if text.startswith(("memory: usage", "oom-kill:", "Memory cgroup out", "Out of memory")):
            return self._oom(text, at_s)
        if (xid := table.XID.search(text)) is not None:
            return self._xid(xid)
        if (sxid := table.SXID.search(text)) is not None:
            return self._sxid(sxid)
        for form in table.FORMS:
            if (match := form.pattern.search(text)) is not None:
                return self._of_form(form, match.groupdict())
        return None

    def _of_form(self, form: table.Form, parts: dict[str, str | None]) -> Event:
        said = {name: value or "?" for name, value in parts.items()}
        gpu = self._gpu(said["bdf"]) if form.device == "gpu" else ""
        device = gpu or form.device.format_map(said)
        if form.code == "nfs-ok":
            for key in [key for key in self._events if key[0] == "nfs" and key[2] == device]:
                self._events[key].weight = Weight.CONTEXT  # it is over
        text = form.text.format_map({**said, "device": device}).replace(" in ?", "")
        return Event(form.code, form.weight, text, device, _number(parts.get("pid")))

    def _xid(self, match: Any) -> Event:
        number, rest, gpu = int(match["n"][:6]), match["rest"] or "", self._gpu(match["bdf"])
        weight, about, meaning = table.XIDS.get(number, table.UNLISTED)
        if (link := table.NVLINK5.match(rest)) is not None and link["sev"] == "Nonfatal":
            weight = Weight.CONTEXT
        if (recovery := table.RECOVERY.search(rest)) is not None:
            weight = Weight.BROKEN if int(recovery["code"], 16) else Weight.CONTEXT
            meaning = f"recovery action {recovery['new']}"
        pid = _number(match["pid"]) if about == "program" else None
        of = "" if about == "GPU" else f" ({about})"
        return Event(f"xid-{number}", weight, f"{gpu}: Xid {number}, {meaning}{of}", gpu, pid)

    def _sxid(self, match: Any) -> Event:
        number, device = match["n"], f"NVSwitch {match['sw']}"[:32]
        fatal = match["sev"] == "Fatal"
        part = table.SXIDS.get(number[:2], "unknown part")
        link = f", link {match['link']}" if match["link"] else ""
        text = f"{device}: SXid {number} ({part}), {match['sev'].lower()}{link}"
        return Event(f"sxid-{number}", Weight.BROKEN if fatal else Weight.CONTEXT, text, device)

    def _gpu(self, bdf: str) -> str:
        """`GPU 3`, else by its address."""
        short = _short(bdf)
        return f"GPU {self._gpus.index(short) if short in self._gpus else short}"

    def _oom(self, text: str, at_s: float) -> Event | None:
        """A kill has up to three lines: the limit, the summary, the kill itself."""
        if (limit := table.OOM_LIMIT.match(text)) is not None:
            self._limit = at_s, int(limit["kb"][:18])
            return None
        match = table.OOM_SUMMARY.match(text) or table.OOM_KILL.match(text)
        pid = None if match is None else _number(match["pid"])
        if match is None or pid is None:
            return None
        if at_s - self._ooms.get(pid, -_DUMP_S) < _DUMP_S:
            return None  # its other line
        self._ooms = {each: s for each, s in self._ooms.items() if at_s - s < _DUMP_S}
        self._ooms[pid] = at_s
        whose = f"the OOM killer ended pid {pid} ({match['comm']})"
        return Event("oom-kill", Weight.ENDED, whose + self._limited(match.groupdict(), at_s),
                     pid=pid)  # fmt: skip

    def _limited(self, parts: dict[str, str | None], at_s: float) -> str:
        cgroup = parts.get("mcg")
        if cgroup is None:
            return ", its cgroup's limit was reached" if parts.get("cg") else ", of the whole host"
        dumped = self._limit is not None and at_s - self._limit[0] < _DUMP_S
        limit = self._limit[1] * 1024 if self._limit is not None and dumped else None
        if limit is None or limit >= _UNLIMITED_KB:
            limit = limit_of(cgroup, self._cgroups)
        shown = cgroup if len(cgroup) <= 80 else f"...{cgroup[-77:]}"
        return f", cgroup {shown}" + (f" (limit {sized(limit)})" if limit is not None else "")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 11 else None


def _short(bdf: str) -> str:
    """`3b:00` of 0000:3b:00.0, as domains are written in two lengths; with its domain if not 0."""
    domain, _, rest = bdf.lower().partition(":")
    rest = rest.partition(".")[0]
    return rest if not domain.strip("0") else f"{domain[-4:]}:{rest}"


def nvidia_gpus(folder: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Addresses of the GPUs in the order of nvidia-smi's numbers, that of the bus."""
    with contextlib.suppress(OSError):
        return [_short(name) for name in sorted(os.listdir(folder))]
    return []


def our_pid(pid: int) -> int | None:
    """A pid of the initial namespace in ours; None: it cannot be known."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino == _INITIAL_NAMESPACE:
            return pid
        if os.stat(f"/proc/{pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino:
            return None
        words = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").partition("NSpid:")[2]
        pids = [int(word) for word in words.partition("\n")[0].split()]
    except (OSError, ValueError):
        return None
    return pids[-1] if len(pids) > 1 and pids[0] == pid else None


class KernelLog:
    """Reads the kernel's log from its oldest line on."""

    name = "kernel log"
    every_s = 0.5
    deadline_s = 10.0

    def __init__(self) -> None:
        self._lines = KernelLines(nvidia_gpus())
        self._fd: int | None = None
        self._rest = b""

    def look(self, ranks: Collection[int], now_s: float) -> Sequence[wire.Testimony]:
        """What the kernel said within the last hour.

        Raises:
            CannotReadError: it may not be read here.
        """
        del ranks
        try:
            if self._fd is None:
                self._fd = _opened(os.environ.get("LIGHTKEEPER_KMSG"))
            for record in self._records(self._fd):
                self._lines.take(record)
        except OSError as exc:
            raise CannotReadError(_reason(exc)) from exc
        return weightiest(_testimony(event, now_s) for event in self._lines.events(now_s))

    def _records(self, fd: int) -> Iterator[str]:
        """One by each read; a plain file has many. Lines that begin with a blank belong to the one
        before.
        """
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
            for line in lines:
                if line[:1] != b" ":
                    yield line.decode("utf-8", "replace")


def _opened(other: str | None) -> int:
    fd = os.open(other or "/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(fd)
    device = os.major(facts.st_rdev), os.minor(facts.st_rdev)
    if not other and not (stat.S_ISCHR(facts.st_mode) and device == _KMSG):
        os.close(fd)
        raise OSError(errno.ENODEV, "/dev/kmsg is not the kernel's log")
    return fd


def _reason(exc: OSError) -> str:
    if exc.errno in (errno.EPERM, errno.EACCES):
        return "not permitted: grant CAP_SYSLOG, or set kernel.dmesg_restrict=0"
    if exc.errno == errno.ENOENT:
        return "there is no /dev/kmsg: give the container that device"
    return str(exc.strerror or exc)


def _testimony(event: Event, now_s: float) -> wire.Testimony:
    return wire.Testimony(
        KernelLog.name, event.weight, event.code, event.text[:200], max(0.0, now_s - event.at_s),
        max(0.0, now_s - event.since_s), event.device[:32], event.pids,
        event.count,
    )  # fmt: skip
