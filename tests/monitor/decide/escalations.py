"""An eviction played by hand: a world that answers what its instructions ask, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import (
    Answered,
    Cleared,
    Climb,
    Event,
    EvictionDeps,
    HandedOver,
    Instruction,
    Instructions,
    LighthouseSeen,
    Liveness,
    Probed,
    ProbeResult,
)
from lightkeeper.monitor.model.eviction import ASKING, Accused, Eviction, Rung
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Member
from tests.monitor.decided import decided, to_evict

ID = ReplicaId("rg_1:a")
RANKS = (RankName("rg_1.0"), RankName("rg_1.1"))
VIEW = LighthouseView(3, (Member(ID, 5), Member(ReplicaId("rg_0:x"), 5)), {ID: 0.1}, "")
EVICT = to_evict(IncidentId("inc-1"), GroupName("rg_1"), ID, (Host("node1"),), "hung")
ALL = EvictionDeps(gate=True, schedulers=("slurm",), sinks=("pager",))
START_S = 1_000_000.0


def accused(incarnation: str = "one") -> tuple[Accused, ...]:
    return tuple(Accused(rank, incarnation, f"http://h/{rank}", Host("node1")) for rank in RANKS)


def look_at(
    lives: Mapping[RankName, Any], lighthouse: LighthouseView | LighthouseAway = VIEW, **more: Any
) -> ProbeResult:
    liveness = {rank: Liveness(life) for rank, life in lives.items()}
    more = {"current": frozenset(RANKS), **more}
    seen = LighthouseSeen(lighthouse, more.pop("refused_for_s", None))
    return ProbeResult(liveness, {rank: str(life) for rank, life in liveness.items()}, seen, **more)


def asked_of(instruction: Instruction) -> tuple[Rung, str] | None:
    """Who is asked to put the group out, by which rung."""
    asks = isinstance(instruction, Climb) and instruction.rung in ASKING
    return (instruction.rung, instruction.whom) if asks else None


class Play:
    """One eviction and its world.

    Args:
        kind: how whoever is asked takes it: `does it`, `refuses`, `never answers`, `crashes`.
        only: the rung that may do so; all others refuse.
    """

    def __init__(
        self, kind: str = "refuses", only: Rung | None = None, deps: EvictionDeps = ALL
    ) -> None:
        self.kind = kind
        self.only = only
        self.deps = deps
        self.now_s = START_S
        self.lives: dict[RankName, Liveness] = dict.fromkeys(RANKS, Liveness.ALIVE)
        self.lighthouse: LighthouseView | LighthouseAway = VIEW
        self.more: dict[str, Any] = {"gate_trouble": "the gate is away"}
        self.asked: list[tuple[float, Rung, str]] = []
        self.eviction = replace(decided(EVICT, accused(), self.now_s), quarantine=())

    def begin(self, **handed: Any) -> Play:
        """Up to where somebody is asked first."""
        self.post(HandedOver(self.now_s, **{"accused": accused(), **handed}))
        self.post(Cleared(may=True))
        self.post(Answered(Rung.EVIDENCE, "", ""))
        return self

    def post(self, event: Event) -> Instructions:
        self.eviction, instructions = handle(self.eviction, event, self.now_s, self.deps)
        for instruction in instructions:
            if (asked := asked_of(instruction)) is not None:
                self.asked.append((self.now_s, *asked))
                self._answer(*asked)
        return instructions

    def look(self) -> Instructions:
        return self.post(Probed(look_at(self.lives, self.lighthouse, **self.more)))

    def play(self, for_s: float, step_s: float = 0.25) -> Play:
        """ProbeResult, and look again."""
        end_s = self.now_s + for_s
        while self.now_s < end_s - 1e-9:
            self.look()
            self.now_s += step_s
        return self

    def asks(self, rung: Rung) -> list[tuple[float, str]]:
        return [(at_s, whom) for at_s, asked, whom in self.asked if asked is rung]

    def _answer(self, rung: Rung, whom: str) -> None:
        kind = self.kind if self.only in (None, rung) else "refuses"
        if kind == "never answers":
            return
        if kind == "does it" and rung is Rung.GATE:
            self.more |= {"refused_for_s": 1.0}
        elif kind == "does it":
            gone = RANKS if rung is not Rung.WORKER_EVICT else (RankName(whom),)
            self.lives |= dict.fromkeys(gone, Liveness.GONE)
        done = {"does it": True, "crashes": False}.get(
            kind, False if rung is Rung.SCHEDULER else None
        )
        said = "crashed: RuntimeError: boom" if kind == "crashes" else "answered"
        if rung is not Rung.GATE or kind == "crashes":
            self.post(Answered(rung, whom, said, done))


def fresh(**changes: Any) -> Eviction:
    return replace(decided(EVICT, accused(), START_S), **changes)
