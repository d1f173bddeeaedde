"""The witness of disks and mounts, against a fake tree."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.sidecar.witnesses.disks import Disks
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight
from tests.worker_server.witnesses.trees import Case, check, follow, write

BROKEN, SLOW, CONTEXT = Weight.BROKEN, Weight.SLOW, Weight.CONTEXT
MOUNTS = (
    "21 1 254:0 / / rw,relatime - ext4 /dev/vda {root}\n"
    "22 21 0:52 / /mnt/my\\040data rw shared:1 - fuse.s3 s3 rw,user_id=0\n"
    "23 21 0:50 / /nfs rw - nfs4 10.0.0.9:/data rw,vers=4.1"
)
HERE = {
    "proc/self/mountinfo": MOUNTS.format(root="rw"), "sys/block/vda/x": "",
    "proc/7/task/7/stat": "7 (python) D 1", "proc/7/task/7/wchan": "request_wait_answer",
    "proc/8/task/8/stat": "8 (python) S 1", "proc/8/task/8/wchan": "ep_poll",
}  # fmt: skip
FUSE, NVME = "sys/fs/fuse/connections/52/waiting", "sys/class/nvme/nvme0/state"


def disk(done: int, under_way: int, name: str = "vda") -> dict[str, str | None]:
    return {
        "proc/diskstats": f" 254 0 {name} {done} 0 8 0 {done} 0 8 0 {under_way} 9 9 1 0 8 0 1 0"
    }


def nfs(sent: int, answered: int, connects: int = 1) -> dict[str, str | None]:
    return {
        "proc/self/mountstats": "device /dev/vda mounted on / with fstype ext4\n"
        "device 10.0.0.9:/data mounted on /nfs with fstype nfs4 statvers=1.1\n"
        f"\txprt:\ttcp 871 1 {connects} 0 12 {sent} {answered} 0 7 0 2 0 0"
    }


def waiting(count: int) -> dict[str, str | None]:
    return {FUSE: str(count)}


STUCK = (SLOW, "disk-stuck", "vda: 3 requests are under way and none was done for 5 s")
SILENT = (SLOW, "nfs-stuck", "NFS 10.0.0.9:/data at /nfs: the server has answered nothing for 10 s")
CASES = [
    Case("a disk that works", [HERE | disk(5, 3), disk(9, 3), disk(20, 3), disk(21, 3)]),
    Case("a disk that discards and flushes", [
        HERE | {"proc/diskstats": f"8 0 vda 5 0 8 0 5 0 8 0 3 9 9 {n % 2 + n} 0 8 0 {n // 2} 0"}
        for n in range(5)
    ]),
    Case("a disk that is idle", [HERE | disk(5, 0), {}, {}, {}]),
    Case("a disk that hangs", [HERE | disk(5, 3), {}, {}], [STUCK], (7,), 2.5, (7, 8)),
    Case("it hung for a moment", [HERE | disk(5, 3), {}, disk(6, 3)], every_s=2.5),
    Case("a partition", [HERE | disk(5, 3, "vda1"), {}, {}]),
    Case("an old kernel's shorter row", [HERE | {"proc/diskstats": "8 0 vda 5 0 8 0 5 0 8 0 3 9 9"},
                                         {}, {}], [STUCK], every_s=2.5),
    Case("FUSE without an answer", [HERE | waiting(2), *[{}] * 6],
         [(SLOW, "fuse-stuck", "FUSE at /mnt/my data: 2 requests have had no answer for")], (7,)),
    Case("FUSE, and no rank waits", [HERE | waiting(2), *[{}] * 6],
         [(CONTEXT, "fuse-stuck", "for 30 s")], ranks=(8,)),
    Case("FUSE that works", [HERE, *[waiting(count) for count in (1, 2, 1, 0, 1, 2, 1, 2)]]),
    Case("NFS that works", [HERE | nfs(9, 9), nfs(20, 19), nfs(21, 21), nfs(30, 29)]),
    Case("NFS that is idle", [HERE | nfs(9, 9), {}, {}, {}]),
    Case("NFS without an answer", [HERE | nfs(9, 9), nfs(10, 9), {}, {}], [SILENT], (7,)),
    Case("NFS, what a broken connection lost", [HERE | nfs(9, 9), nfs(14, 9, 2), {}, {}]),
    Case("NFS, and after it", [HERE | nfs(9, 9), nfs(14, 9, 2), nfs(18, 13), nfs(19, 13), {}, {}],
         [SILENT]),
    Case("a dead drive", [HERE | {NVME: "dead"}],
         [(BROKEN, "nvme-dead", "NVMe drive nvme0 is dead")]),
    Case("a live one", [HERE | {NVME: "live"}, {}]),
    Case("one that resets", [HERE | {NVME: "live"}, {NVME: "resetting"}],
         [(SLOW, "nvme-resetting", "nvme0")]),
    Case("one that is gone", [HERE | {NVME: "live"}, {NVME: None}],
         [(BROKEN, "nvme-gone", "nvme0")]),
    Case("read-only after an error", [HERE, {"proc/self/mountinfo": MOUNTS.format(root="ro")}],
         [(BROKEN, "remounted-ro", "/ (ext4) was writable and is read-only")]),
    Case("read-only always", [HERE | {"proc/self/mountinfo": MOUNTS.format(root="ro")}, {}]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_disks_say(case: Case, tmp_path: Path) -> None:
    check(follow(Disks(tmp_path), tmp_path, case), case)


@pytest.mark.parametrize(("free", "said"), [(0.5, []), (0.011, []), (0.009, ["full"])])
def test_a_full_file_system(
    free: float, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def statvfs(path: Path) -> object:
        asked.append(str(path))
        blocks = 1 << 20
        return SimpleNamespace(f_blocks=blocks, f_bavail=int(free * blocks), f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", statvfs)
    rows = follow(Disks(tmp_path), tmp_path, Case("", [HERE]))
    assert [row.code for row in rows] == said
    assert asked == [str(tmp_path)], "a mount over the network was touched"


def test_a_mount_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    write(tmp_path, HERE)
    with (tmp_path / "proc/self/mountinfo").open("ab") as file:
        file.write(b"24 21 0:53 / /mnt/\xff rw - ext4 /dev/vdb rw\n")
    assert Disks(tmp_path).look((), 1.0) == []


def test_a_dead_drive_is_remembered_for_a_day(tmp_path: Path) -> None:
    witness = Disks(tmp_path)
    follow(witness, tmp_path, Case("", [HERE | {NVME: "dead"}, {NVME: "live"}]))
    assert [row.age_s for row in witness.look((), 1000.0 + 86_400)] == [86_400]
    assert witness.look((), 1000.0 + 86_401) == []


def test_without_mounts_it_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CannotReadError, match="mountinfo"):
        Disks(tmp_path).look((), 1.0)
