"""One rank process of the simulated fleet, and the constants of its program."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from lightkeeper.monitor.model.names import GroupName, Host, RankName, ReplicaId, rank_name
from lightkeeper.worker_server.wire import Doing, Ending, Frame, Identity, Spoilt, Tracer

SLICE_S = 0.05
HEARTBEAT_TIMEOUT_S = 5.0
START_S = 1_000_000.0
"""Unix time of the fleet's first tick: far from zero, so that nobody mistakes ages for times."""

WORK = {"data": 0.02, "forward": 0.10, "backward": 0.15, "optimizer": 0.03}
INTRA = "intra"
ACROSS = "torchft"
HELD = ("gather", "reduce")
"""Places inside a collective of its group."""
WAITS = {*HELD, "cross", "extra"}
"""Places that a rank leaves when others let it."""


@dataclass
class SimRank:
    """One rank process."""

    group: str
    index: int
    world_size: int
    host: str
    born: int = 0
    phase: str = "init"
    phase_since_s: float = 0.0
    left_s: float = 0.0
    place: str = "start"
    """start | data | forward | gather | backward | reduce | cross | optimizer | pause"""
    step: int = 0
    attempt: int = 0
    local_steps: int = 0
    since_vote: int = 0
    """Of these, since the last vote."""
    progress: int = 0
    commits: int = 0
    committed_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    alive: bool = True
    died_s: float | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    stopped: bool = False
    gil_since_s: float | None = None
    hung: bool = False
    hang_in: str | None = None
    stalled_until_s: float = 0.0
    slow: float = 1.0
    extra_s: dict[str, float] = field(default_factory=dict)
    odd: str | None = None
    """Next all_reduce goes wrong: op | size | extra | abort."""
    healing_until_s: float = 0.0
    healed: bool = False
    """Whether its last attempt healed; `errored`: met an error."""
    errored: bool = False
    pauses: list[tuple[str, float]] = field(default_factory=list)
    habits: list[tuple[int, str, float]] = field(default_factory=list)
    """Every so many steps, a pause in this phase of so many seconds."""
    place_of_code: tuple[Frame, Doing] | None = None
    """Where its main thread stands once it stands still, as stacks from outside show it."""
    waits_in: str | None = None
    """Which call of TorchFT's it waits in, whatever its place."""
    cores: float | None = None
    moves: bool = False
    """Whether its main thread goes from line to line: no two stacks agree."""
    tracer: Tracer | None = None
    ending: Ending | None = None
    state: str = "S"
    """State of its main thread while it lives and is not stopped."""
    resume: str = "data"
    enqueued: int = 0
    completed: int = 0
    op: str = "all_gather"
    head_since_s: float = 0.0
    nth: int = 0
    tokens: int = 0
    tokens_a_step: int = 0
    failures: int = 0
    committed: int | None = None
    quorum: tuple[int | None, int | None] = (None, None)
    """Of its last attempt: id, and how many groups took part; one that heals does not."""
    log: list[tuple[int, int, float, dict[str, float]]] = field(default_factory=list)
    """Attempt, step, end and seconds so far, of each step committed."""
    across: int = 0
    """Collectives across groups entered."""
    across_since_s: float = 0.0
    gives_across: int = 1000
    """Numbers that it averages with the other groups."""
    across_ring: deque[dict] = field(default_factory=lambda: deque(maxlen=40))
    begun_s: float = 0.0
    """When the present attempt began, or the last one ended."""
    ring: deque[dict] = field(default_factory=lambda: deque(maxlen=40))
    nan_attempts: int = 0
    """So many of its next attempts have a gradient that is NaN."""
    poisoned: bool = False
    """Its weights are NaN."""
    flaw: int = 0
    """Which corruption its weights carry; a heal takes over the other group's. 0: none."""
    lineage: int = 0
    held_s: float = 0.0
    """In collectives of its group, which lie within forward and backward."""
    waited_s: float = 0.0
    """For others, inside its group and across groups."""
    prints: list[tuple[int, int, int]] = field(default_factory=list)
    spell: Spoilt | None = None
    spell_s: float = 0.0
    loss: float | None = None
    loss_factor: float = 1.0

    @cached_property
    def name(self) -> RankName:
        return rank_name(self.group, self.index)

    @cached_property
    def replica_id(self) -> ReplicaId:
        return ReplicaId(f"{self.group}:uuid{self.born}")

    @cached_property
    def identity(self) -> Identity:
        return Identity(
            job="job",
            group=GroupName(self.group),
            group_rank=self.index,
            world_size=self.world_size,
            host=Host(self.host),
            pid=1000 + 10 * self.born + self.index,
            incarnation=f"{self.name}#{self.born}",
        )

    def enter_phase(self, phase: str, now_s: float) -> None:
        if self.phase != phase or phase == "init":
            spent = now_s - self.phase_since_s
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + max(0.0, spent)
        self.phase, self.phase_since_s = phase, now_s
        self.progress += 1

    def enter_collective(
        self, op: str, now_s: float, size: int = 1000, dtype: str = "torch.float32"
    ) -> None:
        self.enqueued += 1
        self.op, self.head_since_s = op, now_s
        self.ring.append(
            {
                "seq": self.enqueued,
                "op": op,
                "sizes_in": ((size,),),
                "dtype": dtype,
                "step": self.step,
                "attempt": self.attempt,
                "nth": self.nth,
                "enter_s": now_s,
                "exit_s": None,
            }
        )
        self.nth += 1

    def leave_collective(self, now_s: float) -> None:
        self.completed = self.enqueued
        self.held_s += now_s - self.head_since_s
        self.waited_s += now_s - self.head_since_s
        self.head_since_s = now_s
        self.ring[-1]["exit_s"] = now_s
