"""The witnesses on this machine: what it really has of cgroups, mounts and interfaces."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.witnesses.cgroup import Cgroup
from lightkeeper.worker_server.sidecar.witnesses.disks import Disks
from lightkeeper.worker_server.sidecar.witnesses.panel import witnesses
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from tests.worker_server.ranks import eventually

ROOT = Path("/sys/fs/cgroup")
BURN = "while True: pass"
EAT = "pages = [bytearray(1 << 20) for _ in range(200)]"


@contextmanager
def cgroup(controller: str, **limits: int) -> Iterator[Path]:
    """A cgroup of version 1 of this machine, with limits."""
    folder = ROOT / controller / f"lightkeeper-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as exc:
        pytest.skip(f"no cgroup of version 1 can be made for {controller}: {exc.strerror}")
    try:
        for name, value in limits.items():
            (folder / f"{controller}.{name}").write_text(str(value))
        yield folder
    finally:
        eventually(lambda: not (folder / "cgroup.procs").read_text(), "nobody is in the cgroup")
        folder.rmdir()


@contextmanager
def running(code: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Python code, in a cgroup from its first line on."""
    enter = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    code = f"{enter}\nprint(flush=True)\ninput()\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_a_process_that_its_cgroup_throttles() -> None:
    # a fifth of a core; on a busy machine it gets that before the others get theirs
    with (
        cgroup("cpu", shares=200_000, cfs_quota_us=20_000) as folder,
        running(BURN, folder) as process,
    ):
        witness = Cgroup()
        assert witness.look((process.pid,), time.monotonic()) == []
        begin(process)
        row = eventually(lambda: first(witness, process.pid), "it is said to be throttled")
    assert (row.witness, row.weight, row.code) == ("cgroup", wire.Weight.SLOW, "cpu-throttled")
    assert row.pids == (process.pid,)
    assert f"cgroup /{folder.name} is limited to 0.2 cores, and did not get" in row.text


def first(witness: Cgroup, pid: int) -> wire.Testimony | None:
    return next(iter(witness.look((pid,), time.monotonic())), None)


def test_a_process_that_the_kernel_ends_for_memory() -> None:
    with cgroup("memory", limit_in_bytes=64 << 20) as folder, running(EAT, folder) as process:
        witness = Cgroup()
        assert witness.look((process.pid,), 1000.0) == []
        begin(process)
        assert process.wait(30) == -9
        (row, *_) = witness.look((), 1005.0)  # the rank is not known any more
    assert (row.weight, row.code, row.pids) == (wire.Weight.ENDED, "oom-kill", (process.pid,))
    name = f"/{folder.name}"
    assert row.text.endswith(f"a process of cgroup {name}; {name} is limited to 64 MiB")


@contextmanager
def fuse(point: Path, *, first: bool) -> Iterator[str]:
    """A FUSE mount whose server never answers, or after its first request; its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as exc:
        pytest.skip(f"/dev/fuse: {exc.strerror}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"lightkeeper", bytes(point), b"fuse", 0, options.encode()):
        os.close(server)
        pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    number = next(line.split()[2].split(":")[1] for line in lines if f" {point} " in line)
    control = Path("/sys/fs/fuse/connections")
    mounts = not (control / number).exists()
    if mounts:
        subprocess.run(["mount", "-t", "fusectl", "none", control], check=True)
    try:
        if first:  # FUSE_INIT: fuse_in_header, and back fuse_out_header and fuse_init_out
            unique = struct.unpack_from("=IIQ", os.read(server, 1 << 17))[2]
            answer = struct.pack("=IIIIHHI36x", 7, 31, 4096, 0, 8, 6, 4096)
            os.write(server, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
        yield number
    finally:
        os.close(server)  # who waits for it gets an error
        libc.umount2(bytes(point), 2)
        if mounts:
            subprocess.run(["umount", control], check=True)


@pytest.mark.parametrize("first", [False, True], ids=["never", "no more"])
def test_a_fuse_server_that_does_not_answer(first: bool, tmp_path: Path) -> None:
    with fuse(tmp_path, first=first) as number:
        rank = subprocess.Popen(["stat", tmp_path / "file"], stderr=subprocess.DEVNULL)
        waits = Path(f"/proc/{rank.pid}/task/{rank.pid}/wchan")
        eventually(lambda: waits.read_text().startswith(("fuse", "request_wait")), "it waits")
        witness = Disks()
        assert witness.look((rank.pid,), 1000.0) == []
        rows = [row for row in witness.look((rank.pid,), 1031.0) if row.device == f"FUSE {number}"]
    rank.wait(20)
    (row,) = rows
    assert (row.code, row.weight, row.pids) == ("fuse-stuck", wire.Weight.SLOW, (rank.pid,))
    assert row.text == f"FUSE at {tmp_path}: {2 - first} requests have had no answer for 31 s"


NETWORK = """
import subprocess, sys, time
from pathlib import Path
from lightkeeper.worker_server.sidecar.witnesses.hardware import NetworkWitness
witness, net = NetworkWitness(), Path("/sys/class/net")
for number, command in enumerate(["true", "ip link set v0 down", "true", "ip link set v0 up"]):
    subprocess.run(command.split(), check=True)
    up = number in (0, 3)
    while any((Path(net, v, "operstate").read_text() == "up\\n") != up for v in ("v0", "v1")):
        time.sleep(0.01)  # the kernel tells it up to a second later
    rows = witness.look((), 1000.0 + 5 * number)
    print([f"{row.weight} {row.code} {row.device} {row.age_s:.0f}" for row in rows])
"""


def test_a_link_that_goes_in_a_network_of_its_own() -> None:
    name = f"lightkeeper-{os.getpid()}"
    try:
        made = subprocess.run(
            ["ip", "netns", "add", name], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no ip(8)")
    if made.returncode:
        pytest.skip(f"no network namespace: {made.stderr}")
    try:
        for command in ("link add v0 type veth peer v1", "link set v0 up", "link set v1 up"):
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        command = ["ip", "netns", "exec", name, sys.executable, "-c", NETWORK]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
    assert said.splitlines() == [
        "[]",
        "[]",
        "['slow link-down v0 0', 'slow link-down v1 0']",
        "['slow link-down v0 5', 'slow link-down v1 5']",
    ]


@pytest.mark.parametrize("make", witnesses(), ids=lambda witness: witness.name)
def test_each_reads_this_machine_or_says_why_not(make: object) -> None:
    witness = next(each for each in witnesses() if each.name == getattr(make, "name", ""))
    for now_s in (1000.0, 1005.0):
        try:
            rows = witness.look((os.getpid(),), now_s)
        except CannotReadError:
            continue
        assert not [row for row in rows if row.weight is wire.Weight.BROKEN]
