"""The fault classes of the campaign: what is injected, into whom, and what has to be said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final

from experiments.fleet import SHAPES, Setting
from lightkeeper.trainer.faults import KINDS

ACTS: Final = "experiments.campaign.acts"
"""Faults that the product's injector does not have."""
OWN_PHASES: Final = ("data", "forward", "backward", "optimizer")
"""Phases in which a rank waits for nobody."""


class Act(StrEnum):
    """Who does it."""

    INJECT = "inject"  # the trainer, by its injector
    HOST = "host"  # the campaign: everything of one group and its sidecars at once
    LIGHTHOUSE = "lighthouse"  # the campaign: the Lighthouse is killed and started again


class Whom(StrEnum):
    """Who has to be named for an exact verdict."""

    RANK = "rank"
    GROUP = "group"  # every rank of the group
    NOBODY = "nobody"


Fault = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FaultClass:
    """One row of the campaign's table."""

    name: str
    what: str
    make: Callable[[Random], Fault]
    """The fault's kind, phase, factor; rank and step are chosen by the plan."""
    kinds: frozenset[str]
    """Kinds of incident that are right."""
    shapes: tuple[str, ...] = ("3x1", "2x2")
    limit_s: float = 60.0
    """An incident that has not fired by then is missed."""
    whom: Whom = Whom.RANK
    act: Act = Act.INJECT
    everybody: bool = False
    """Into all ranks of the group at the same step."""
    settle_s: float = 0.0
    """Calm needed before."""
    follow_s: float = 0.0
    """Watched for so long at least, also when nothing fires."""
    open_question: str = ""
    """Why the class has no target; empty: it has."""


def _of(kind: str) -> str:
    return kind if kind in KINDS else f"{ACTS}:{kind}"


def _plain(kind: str) -> Callable[[Random], Fault]:
    return lambda random: {"kind": _of(kind), "phase": random.choice(OWN_PHASES)}


def _mismatch(kind: str) -> Callable[[Random], Fault]:
    return lambda random: {"kind": _of(kind)}


def _hang(phase: str) -> Callable[[Random], Fault]:
    return lambda random: {"kind": _of(random.choice(("hang", "busy"))), "phase": phase}


def _slow(kind: str) -> Callable[[Random], Fault]:
    return lambda random: {"kind": _of(kind), "factor": random.choice((3.0, 5.0, 8.0))}


_DEAD = frozenset({"dead"})
_HUNG = frozenset({"not_entered"})
_MISMATCH = frozenset({"mismatch"})
_TANGLED = frozenset({"mismatch", "deadlock"})
_SLOW = frozenset({"straggler"})
_CORRUPT = frozenset({"state_corrupt"})
_PAIRS = ("2x2",)

_CLASSES: Final = (
    FaultClass("crash", "SIGKILL", _plain("crash"), _DEAD),
    FaultClass("segfault", "reads address 0 in C", _plain("segfault"), _DEAD),
    FaultClass("abort", "abort() in C", _plain("abort"), _DEAD),
    FaultClass(
        "exception", "an exception that nobody catches; the process may take long to end",
        _plain("error"), _DEAD | _HUNG,
    ),
    FaultClass("stop", "SIGSTOP", _plain("stop"), _HUNG),
    FaultClass("gil", "the GIL held in C for ever", _plain("gil"), _HUNG),
    *(
        FaultClass(
            f"hang-{phase}", f"sleeps or loops in Python, in phase {phase}", _hang(phase), _HUNG
        )
        for phase in OWN_PHASES
    ),
    FaultClass(
        "hang-communication",
        "sleeps or loops in phase communication, outside any collective",
        _hang("communication"),
        _HUNG,
        limit_s=90.0,
    ),
    FaultClass(
        "mismatch-op", "all_gather for all_reduce", _mismatch("mismatch"), _MISMATCH, _PAIRS
    ),
    FaultClass(
        "mismatch-size", "half the elements: gloo aborts", _mismatch("mismatch:size"),
        _MISMATCH, _PAIRS,
    ),
    FaultClass(
        "mismatch-dtype", "integers for floats, the same bytes: gloo lets it pass",
        _mismatch("dtype"), _MISMATCH, _PAIRS,
    ),
    FaultClass(
        "mismatch-root", "broadcasts from rank 1, or expects it to, where rank 0 is the root",
        _mismatch("root"), _MISMATCH, _PAIRS,
    ),
    FaultClass(
        "order", "two collectives on two process groups in the other order",
        _mismatch("order"), _TANGLED, _PAIRS, limit_s=90.0,
    ),
    FaultClass("extra", "a collective more", _mismatch("extra"), _TANGLED, _PAIRS, limit_s=90.0),
    FaultClass("skip", "a collective less", _mismatch("skip"), _TANGLED, _PAIRS, limit_s=90.0),
    FaultClass(
        "receive", "waits for a message that nobody sends",
        _mismatch("receive"), _TANGLED | _HUNG, _PAIRS, limit_s=90.0,
    ),
    FaultClass(
        "p2p-circle", "every rank of a group waits for a message of the next",
        _mismatch("receive"), _TANGLED, _PAIRS, limit_s=120.0, whom=Whom.GROUP, everybody=True,
    ),
    FaultClass(
        "slow-compute", "3, 5 or 8 times slower from then on", _slow("slow"), _SLOW,
        limit_s=180.0, settle_s=20.0,
    ),
    FaultClass(
        "slow-data", "loses the same time loading data", _slow("slow_data"), _SLOW,
        limit_s=180.0, settle_s=20.0,
    ),
    FaultClass(
        "slow-link", "sends with a 3rd, 5th or 8th of a fair rate", _slow("slow_link"), _SLOW,
        limit_s=120.0, settle_s=80.0,
        open_question="a ring moves at the pace of its slowest link for everybody",
    ),
    FaultClass(
        "nan", "its gradients hold a NaN from then on", lambda random: {"kind": "nan"}, _CORRUPT,
    ),
    FaultClass(
        "corrupt", "one bit of one weight flips", lambda random: {"kind": "corrupt"}, _CORRUPT,
        ("3x1",),  # of two groups that hold a shard each, who is right cannot be told
    ),
    FaultClass(
        "host-killed", "all processes of a group and their WorkerServers SIGKILLed at once",
        lambda random: {"kind": "host-killed"}, _DEAD, limit_s=90.0,
        whom=Whom.GROUP, act=Act.HOST,
    ),
    FaultClass(
        "host-frozen", "all processes of a group and their WorkerServers SIGSTOPped at once",
        lambda random: {"kind": "host-frozen"}, _DEAD, limit_s=90.0,
        whom=Whom.GROUP, act=Act.HOST,
    ),
    FaultClass(
        "lighthouse", "the Lighthouse is killed, and is back 3 to 10 s later: nobody to accuse",
        lambda random: {"kind": "lighthouse", "away_s": random.uniform(3, 10)},
        frozenset({"lighthouse_away"}),
        whom=Whom.NOBODY, act=Act.LIGHTHOUSE, follow_s=40.0,
    ),
)  # fmt: skip

CLASSES: Final[Mapping[str, FaultClass]] = {
    fault_class.name: fault_class for fault_class in _CLASSES
}


@dataclass(frozen=True, slots=True)
class Run:
    """One fault of the campaign, as its seed has it."""

    name: str
    number: int
    seed: int
    shape: str
    rank: str
    group: str
    in_steps: int
    """Steps from the injection to the fault."""
    fault: Fault = field(default_factory=dict)

    @property
    def kind(self) -> FaultClass:
        """Its class."""
        return CLASSES[self.name]

    @property
    def setting(self) -> Setting:
        """Its fleet."""
        return Setting(self.shape)

    @property
    def key(self) -> str:
        """Names the run in the results."""
        return f"{self.name}#{self.number}@{self.seed}"

    @property
    def hit(self) -> tuple[str, ...]:
        """Ranks that get the fault."""
        if self.kind.everybody or self.kind.whom is Whom.GROUP:
            return tuple(f"{self.group}.{n}" for n in range(SHAPES[self.shape].ranks))
        return (self.rank,)

    @property
    def guilty(self) -> tuple[str, ...]:
        """Ranks that an exact verdict names."""
        return () if self.kind.whom is Whom.NOBODY else self.hit


def plan(runs: int, seed: int, shapes: Collection[str] = tuple(SHAPES)) -> list[Run]:
    """All runs in these shapes, shape by shape, classes in turn; each depends on its name only."""
    runs_of_all = []
    for name, fault_class in CLASSES.items():
        for number in range(runs):
            random = Random(f"{seed}/{name}/{number}")
            shape = fault_class.shapes[number % len(fault_class.shapes)]
            if shape not in shapes:
                continue
            group = f"rg_{random.randrange(SHAPES[shape].groups)}"
            rank = f"{group}.{random.randrange(SHAPES[shape].ranks)}"
            in_steps = random.randint(3, 25)
            runs_of_all.append(
                Run(name, number, seed, shape, rank, group, in_steps, fault_class.make(random))
            )
    order = list(SHAPES)
    return sorted(runs_of_all, key=lambda run: (order.index(run.shape), run.number))
