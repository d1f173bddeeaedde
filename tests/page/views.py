"""Views to show: a crowd that is only written down, and the simulated fleet with its faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.tempo import Tempo, TempoBook
from lightkeeper.monitor.decide.view import RecentIncidents, View
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    Decision,
    Eviction,
    EvictionState,
    Hold,
    Release,
    Remembered,
)
from lightkeeper.monitor.model.names import GroupName, Host, RankName, ReplicaId, rank_name
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.rulebook import standing
from lightkeeper.worker_server.wire import GroupHead, Identity, Process, StateReport, StepState
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet

NOW_S = 1_795_000_000.0
_PHASES = {
    RankHealth.HEALTHY: ("forward", 0.4),
    RankHealth.WAITING: ("communication", 14.0),
    RankHealth.STALLED: ("backward", 21.5),
    RankHealth.STARTING: ("init", 3.0),
    RankHealth.DEAD: ("forward", 8.0),
    RankHealth.LATE: ("other", 9.0),
    RankHealth.SLOW: ("forward", 1.4),
    RankHealth.CORRUPT: ("forward", 0.4),
    RankHealth.TRACED: ("forward", 12.0),
    RankHealth.ENDED: ("forward", 3.0),
    RankHealth.FINISHED: ("finished", 3.0),
}


def crowd(
    groups: int,
    world_size: int,
    sick: Mapping[str, RankHealth] | None = None,
    *,
    tick: int = 100,
    rest: RankHealth = RankHealth.HEALTHY,
    names: Iterable[str] | None = None,
    hosts_a_group: int = 1,
    **more,
) -> View:
    """Groups of ranks, each as healthy as it is told here; nobody judged them.

    Args:
        groups: replica groups, `rg_0` on.
        world_size: ranks of each.
        sick: rank -> its health, where that is not `rest`.
        tick: number of the tick; step and time follow from it.
        rest: the health of all others.
        names: of the groups, instead of `rg_0` on.
        hosts_a_group: over how many hosts the ranks of a group are spread.
        more: further fields of the view.
    """
    called = [f"rg_{n}" for n in range(groups)] if names is None else list(names)
    health: dict[RankName, RankHealth] = {}
    seen: list[Observation] = []
    for group in called:
        for index in range(world_size):
            rank = rank_name(group, index)
            health[rank] = (sick or {}).get(rank, rest)
            host = f"node-{group}-{index * hosts_a_group // world_size}"
            seen.append(_observation(group, index, world_size, host, health[rank], tick))
    seen.sort(key=lambda observation: observation.rank)
    members = tuple(Member(ReplicaId(f"{name}:a"), 1000 + tick) for name in called)
    ages = {member.replica_id: 0.3 for member in members}
    snapshot = Snapshot(
        now_s=NOW_S + tick,
        tick=tick,
        lateness_s=0.0,
        observations=tuple(seen),
        lighthouse=more.pop("lighthouse", LighthouseView(7, members, ages, "fine")),
        pause=more.pop("pause", None),
    )
    result = TickResult(NOW_S + tick, rank_health=health, unknown=more.pop("unknown", {}))
    tempos = more.pop("tempos", {rank: Tempo(1.25, 0.9) for rank in health})
    more.setdefault("rules", standing(KeeperConfig()).current)
    return View(snapshot, result, observe=more.pop("observe", False), tempos=tempos, **more)


def _observation(
    group: str, index: int, world_size: int, host: str, health: RankHealth, tick: int
) -> Observation:
    identity = Identity(
        job="job", group=GroupName(group), group_rank=index, world_size=world_size,
        host=Host(host), pid=4000 + index, incarnation="one",
    )  # fmt: skip
    url = f"http://127.0.0.1:{9000 + index}"
    if health is RankHealth.UNREACHABLE:
        return Observation(identity, url, Unreachable(Failure.TIMEOUT, "no answer in 1 s"), 1.0)
    dead = health in (RankHealth.DEAD, RankHealth.ENDED, RankHealth.FINISHED)
    signal = {RankHealth.DEAD: "SIGKILL", RankHealth.ENDED: "SIGTERM"}.get(health)
    how = {"exit_code": 0} if signal is None else {"exit_signal": signal}
    phase, age_s = _PHASES[health]
    report = StateReport(
        identity=identity,
        process=Process(
            alive=not dead, state=None if dead else "S", dead_age_s=8.0 if dead else None,
            interpreter_age_s=None if dead else 0.1, **(how if dead else {}),
        ),
        step=StepState(
            step=1000 + tick, attempt=900 + tick, progress=5 * tick, phase=phase,
            phase_age_s=age_s, commits=900 + tick, last_commit_age_s=0.6,
            replica_id=ReplicaId(f"{group}:a"), quorum_id=7, participants=3, loss=2.3456,
            tokens=4096 * tick, seconds={"forward": 0.4 * tick, "communication": 0.3 * tick},
        ),
        heads=(GroupHead("intra", world_size, 40 + tick, 0, "all_reduce", 0.2),),
    )  # fmt: skip
    return Observation(identity, url, report, 0.01)


class Simulated:
    """The simulated fleet with its pipeline, shown as a keeper shows it (books stay empty)."""

    def __init__(self, fleet: SimFleet, config: KeeperConfig | None = None) -> None:
        self.drive = Drive(fleet, config, alter=self._see)
        self._rules = standing(self.drive.config).current
        self._chronicle = RecentIncidents(Remembered())
        self._tempos = TempoBook()
        self._seen: Snapshot | None = None

    def _see(self, snapshot: Snapshot) -> Snapshot:
        self._seen = snapshot
        return snapshot

    def run(self, ticks: int) -> View:
        """The view after so many more ticks."""
        view = self.tick()
        for _ in range(ticks - 1):
            view = self.tick()
        return view

    def tick(self) -> View:
        """The view after one more tick."""
        result, chronicle = self.drive.step(), self._chronicle
        snapshot = self._seen
        assert snapshot is not None
        chronicle.take_incidents(result.changed)
        for decision in result.decisions:
            chronicle.take_decision(_row(decision, snapshot.now_s))
        for eviction in snapshot.evictions:
            chronicle.take_decision(eviction)
        gone = {eviction.group for eviction in snapshot.evictions if eviction.gone_s is None}
        return View(
            snapshot=snapshot, result=result, observe=self.drive.config.observe,
            incidents=chronicle.incidents(), decisions=chronicle.decisions(),
            evicting=frozenset(gone), tempos=self._tempos.push(snapshot), rules=self._rules,
        )  # fmt: skip


def _row(decision: Eviction | Hold | Release, now_s: float) -> Decision:
    match decision:
        case Eviction():
            asked = {"asked_s": now_s, "decided_s": None, "state": EvictionState.ASKING}
            return replace(decision, taken_up=True, **asked)
        case Hold() | Release():
            return replace(decision, at_s=now_s)
