"""What block devices and mounts say: disks that do not answer, and file systems nobody serves.

A mount is never touched: who asks a dead NFS or FUSE server for anything does not come back. Local
file systems alone are asked how full they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lightkeeper.worker_server.sidecar.files import needed, number_in, text_in
from lightkeeper.worker_server.sidecar.witnesses.witness import MachineWitness
from lightkeeper.worker_server.wire import Weight

_DISK_S, _NFS_S, _FUSE_S = 5.0, 10.0, 30.0
"""Without any answer, while something is asked."""
_FUSE_WAITS: Final = ("request_wait_answer", "fuse_")
_FREE_LEAST: Final = 0.01
_LOCAL: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs")
_NVME: Final = {
    "dead": Weight.BROKEN, "gone": Weight.BROKEN, "resetting": Weight.SLOW,
    "connecting": Weight.SLOW,
}  # fmt: skip


class Disks(MachineWitness):
    """Reads counters of block devices, of NFS and FUSE mounts, and the state of NVMe drives."""

    name = "disks"
    every_s = 2.5

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._writable: set[str] = set()
        self._open: dict[str, int] = {}
        """NFS transport -> the fewest requests without an answer since it last connected."""
        self._drives: set[str] = set()

    def _read(self) -> None:
        points = {}
        for line in needed(self.root / "proc/self/mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            _, _, device, _, point, *_ = left.split()
            kind, source, options = [*right.split(), "", ""][:3]
            points[device] = point = point.replace("\\040", " ")
            self._file_system(point, kind, source, "rw" in options.split(","))
        for line in (text_in(self.root / "proc/diskstats") or "").splitlines():
            self._disk(*line.split()[2:])
        self._fuse(points)
        self._nfs()
        drives = {f.parent.name: text_in(f) for f in self.root.glob("sys/class/nvme/nvme*/state")}
        self._drives |= drives.keys()
        for name in self._drives:
            state = drives.get(name, "gone") or ""
            if weight := _NVME.get(state):
                self.saw(weight, f"nvme-{state}", f"NVMe drive {name} is {state}", device=name)

    def _stuck(self, code: str, device: str, text: str, for_s: float) -> None:
        """Ranks in state D wait for it; for FUSE those in one of its functions."""
        file, words = ("wchan", _FUSE_WAITS) if code == "fuse-stuck" else ("stat", (") D ",))
        pids = {
            pid
            for pid in self.ranks
            for task in (self.root / f"proc/{pid}/task").glob("[0-9]*")
            if any(word in (text_in(task / file) or "") for word in words)
        }
        weight = Weight.SLOW if pids or file == "stat" else Weight.CONTEXT
        text = f"{text} for {for_s:.0f} s"
        self.saw(weight, code, text, device=device, pids=pids, for_s=for_s)

    def _disk(self, name: str, *cells: str) -> None:
        """A row of /proc/diskstats (Documentation/admin-guide/iostats.rst)."""
        reads, writes, under_way, discards, flushes = (
            int(cells[at]) if at < len(cells) else 0 for at in (0, 4, 8, 11, 15)
        )
        done = reads + writes + discards + flushes
        for_s = self.unchanged_s(name, done if under_way else None)
        if for_s >= _DISK_S and (self.root / "sys/block" / name).exists():  # it is no partition
            text = f"{name}: {under_way} requests are under way and none was done"
            self._stuck("disk-stuck", name, text, for_s)

    def _fuse(self, points: Mapping[str, str]) -> None:
        """A busy server has requests, too: what counts is that their number stays, and a rank."""
        for file in self.root.glob("sys/fs/fuse/connections/*/waiting"):
            for_s = self.unchanged_s(file, number_in(file) or None)
            if for_s >= _FUSE_S:
                where = points.get(f"0:{file.parent.name}", "another namespace")
                text = f"FUSE at {where[-90:]}: {number_in(file)} requests have had no answer"
                self._stuck("fuse-stuck", f"FUSE {file.parent.name}", text, for_s)

    def _nfs(self) -> None:
        """By the counters of each TCP transport: connections, requests sent, answers received."""
        mount = ""
        for line in (text_in(self.root / "proc/self/mountstats") or "").splitlines():
            words = line.split()
            if words[:1] == ["device"]:
                mount = f"{words[1]} at {words[4]}"
            if words[:2] != ["xprt:", "tcp"] or len(words) < 9:
                continue
            key, answered = f"{mount} {words[2]}", int(words[8])
            open_now = int(words[7]) - answered
            again = self.rose(("connects", key), int(words[4]))  # what was lost then stays open
            self._open[key] = open_now if again else min(open_now, self._open.get(key, open_now))
            for_s = self.unchanged_s(key, answered if open_now > self._open[key] else None)
            if for_s >= _NFS_S:
                text = f"NFS {mount[-120:]}: the server has answered nothing"
                self._stuck("nfs-stuck", mount.partition(":")[0], text, for_s)

    def _file_system(self, point: str, kind: str, source: str, writable: bool) -> None:
        device = source.removeprefix("/dev/")
        if writable:
            self._writable.add(point)
        elif point in self._writable and device != source:
            text = f"{point[:90]} ({kind}) was writable and is read-only"
            self.saw(Weight.BROKEN, "remounted-ro", text, device=device)
        if point in ("/", "/dev/shm") and kind in _LOCAL:  # noqa: S108
            space = os.statvfs(self.root / point[1:])
            if space.f_blocks and space.f_bavail < _FREE_LEAST * space.f_blocks:
                left = f"{space.f_bavail * space.f_frsize >> 20} MiB"
                self.saw(Weight.CONTEXT, "full", f"{point}: only {left} are free", device=point)
