"""A black box without a rank, behind the real application."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.sidecar.app import RequestGuard, Served, make_app
from lightkeeper.worker_server.sidecar.metrics import make_registry
from lightkeeper.worker_server.sidecar.process import EvictionResult
from tests.changed import replace

TOKEN = "sesame"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
IDENTITY = wire.Identity(
    job="job",
    group=wire.GroupName("rg_1"),
    group_rank=0,
    world_size=2,
    host=wire.Host("node7"),
    pid=77,
    incarnation="32bfd68baf",
)
PROCESS = wire.Process(alive=True, state="S", threads=9, rss_bytes=2**28, interpreter_age_s=0.25)
STEP = wire.StepState(
    step=7,
    attempt=9,
    progress=63,
    phase="communication",
    phase_age_s=0.5,
    commits=6,
    last_commit_age_s=1.5,
    replica_id=wire.ReplicaId("rg_1:uuid"),
    quorum_id=2,
    participants=3,
    healing=True,
    errored=True,
    loss=2.5,
    tokens=4096,
    seconds={"forward": 3.25, "communication": 1.0},
    committed_step=6,
    commit_failures=2,
    tags=("warmup",),
    counters={"samples_skipped": 3.0},
    source="torchft",
    times={
        "staging": wire.Took(1, 0.002, 0.002, 1000, 1000),
        "reconfigure": wire.Took(3, 0.5, 0.1),
    },
)
HEADS = (
    wire.GroupHead("default", 2, 5, 0, "all_reduce", 0.25),
    wire.GroupHead("intra", 2, 8, 2, "all_gather", 1.25, held=7),
)
TRANSFERS = (
    wire.TransferHead("default", 1, 0, 1, 4, 0, 2.0),
    wire.TransferHead("default", -1, 7, 0, 3, 2, 1.5, 2),
)
FORMING = wire.Forming("new_group", 3, 12.25, (0, 1), "10.0.0.1:29500", "app/train.py:9")
TIMEOUTS = {"collective": 600.0, "quorum": 60.0, "commit": 60.0}
ENTRY = wire.RingEntry(
    group="intra",
    seq=8,
    op="all_gather",
    sizes_in=((4, 4),),
    sizes_out=((8, 4),),
    dtype="float32",
    reduce_op="SUM",
    root=0,
    step=7,
    attempt=9,
    nth=2,
    site="train.py:12",
    enter_age_s=1.25,
    exit_age_s=0.5,
    error="RuntimeError",
    is_async=True,
    id=13,
    torch_ids=(21, 22),
    quorum=2,
    thread=77,
    tag=0,
)
CONNECTIONS = (
    wire.Connection(
        "10.0.0.7:4711", "10.0.0.8:29500", wire.Trouble.UNACKNOWLEDGED, 6.25, "across", 192, 4,
        125_000, 0.004,
    ),
    wire.Connection("[fd00::7]:4712", "[fd00::8]:29510", for_s=0.5),
)  # fmt: skip
INTERFACES = (wire.Interface("eth0", True, 3, 1), wire.Interface("mlx5_0/1", False))
TRACE = wire.Trace("ValueError: no", "sys.excepthook", 3.5)


MACHINE = wire.MachineReport(
    wire.Host("node7"), 1.5,
    {"kernel log": "", "NVIDIA": "there is no library"},
    (wire.Testimony("kernel log", wire.Weight.BROKEN, "xid-79",
                    "GPU 3: Xid 79, fallen off the bus", 60.0, 60.0, "GPU 3"),
     wire.Testimony("kernel log", wire.Weight.ENDED, "oom-kill",
                    "the OOM killer ended pid 78 (python)", 5.0, 5.0, pids=(78, 77))),
)  # fmt: skip


class FakeBox:
    """Says the fullest that the wire allows; tests change `wrong` to see it refuse."""

    def __init__(self) -> None:
        self.identity = IDENTITY
        self.page = SimpleNamespace(claim=wire.Claim(secret="of this incarnation"))
        self.wrong: dict[str, Exception] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.gate: threading.Event | None = None
        self.inside = threading.Semaphore(0)

    def _note(self, name: str, *what: Any) -> None:
        self.asked.append((name, *what))
        if name in self.wrong:
            raise self.wrong[name]

    def _wait(self) -> None:
        self.inside.release()
        if self.gate is not None:
            assert self.gate.wait(30)

    age_s = 7.0

    def process(self) -> wire.Process:
        return PROCESS

    def state(self) -> wire.StateReport:
        self._note("state")
        return wire.StateReport(
            IDENTITY, PROCESS, STEP, HEADS, transfers=TRANSFERS, forming=FORMING,
            timeouts=TIMEOUTS, lighthouse="10.0.0.1:29510", addresses=("10.0.0.7", "fd00::7"),
            connections=CONNECTIONS, machine=MACHINE.testimonies[:1],
        )  # fmt: skip

    def steps(self, since: int = 0) -> wire.StepLog:
        self._note("steps", since)
        row = wire.StepRow(9, 7, 1, 0.5, 0.25, {"forward": 0.125})
        return wire.StepLog(IDENTITY, True, (row, structs.replace(row, attempt=10, committed=0)), 3)

    def flight_record(self, *, only_active: bool = False) -> wire.FlightRecord:
        self._note("flight_record", only_active)
        self._wait()
        return wire.FlightRecord(
            identity=IDENTITY,
            alive=True,
            members={"intra": (0, 1)},
            ring=(ENTRY, wire.RingEntry("default", 1, "barrier", enter_age_s=2.0)),
            dropped=4,
            torch={"entries": [], "version": "2.10"},
            torch_age_s=0.5,
            torch_error="late",
            torch_only=(5,),
        )

    def last_words(self) -> wire.LastWords:
        self._note("last_words")
        dead = wire.Process(False, None, dead_age_s=3.5, exit_code=1, exit_signal="SIGKILL")
        return wire.LastWords(
            IDENTITY, dead, "raised ValueError", TRACE, TRACE, TRACE, replace(TRACE, age_s=None),
            "stderr is a pipe",
        )  # fmt: skip

    def network_report(self) -> wire.NetworkReport:
        self._note("network_report")
        addresses = ("10.0.0.7", "fd00::7")
        return wire.NetworkReport(IDENTITY, True, 0.0, addresses, CONNECTIONS, INTERFACES, "late")

    @property
    def machine(self) -> FakeBox:
        return self

    def report(self) -> wire.MachineReport:
        self._note("machine")
        return MACHINE

    def release(self, quorum_id: int, addresses: Sequence[str], wait_s: float) -> tuple[int, str]:
        self._note("release", quorum_id, tuple(addresses), wait_s)
        return 2, "ended 2 connections"

    def stacks(self, *, native: bool = False) -> wire.Trace:
        self._note("stacks", native)
        self._wait()
        return wire.Trace("Thread 77: train.py:12\n", "a test", 0.0)


def host_report() -> wire.HostReport:
    report = wire.StateReport(IDENTITY, PROCESS, STEP, HEADS)
    silent = wire.StateReport(replace(IDENTITY, group_rank=1), PROCESS, None)
    return wire.HostReport(
        wire.Host("node7"),
        (
            wire.HostEntry(IDENTITY.rank, "http://127.0.0.1:1", report),
            wire.HostEntry(silent.identity.rank, None, silent),
            wire.HostEntry(wire.RankName("rg_2.0"), None, error="not a page"),
        ),
    )


def app_of(box: FakeBox, settings: Settings | None = None, evictor: Any = None) -> Any:
    """The application; by default on loopback with a token."""
    registry = make_registry(box.state, lambda: "http://127.0.0.1:1")
    evictor = evictor or (lambda order: EvictionResult(("SIGTERM",), gone=True))
    guard = RequestGuard(settings or Settings(token=TOKEN), names=["node7"])
    return make_app(Served(box, evictor, registry, host_report, ("http://m:8470",)), guard)
