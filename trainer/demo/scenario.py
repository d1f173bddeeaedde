"""One fault from injection to recovery, as a timeline.

Every time is measured where it happened: the injection by the trainer that fell ill, the rest
by the monitor. Both run on this machine and use one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from trainer.demo.fleet import Fleet, FleetError
from trainer.demo.watch import MonitorAwayError, MonitorClient, unhealthy

START_LIMIT_S: Final = 180.0
STRIKE_LIMIT_S: Final = 60.0
KEEPER_LIMIT_S: Final = 150.0
# TorchFT alone: survivors crash after about 125 s and start again (facts/torchft.md).
ALONE_LIMIT_S: Final = 300.0
# A slow group slows the others for ever; longer would show the same again.
ALONE_SLOW_LIMIT_S: Final = 60.0
POLL_S: Final = 0.5
EQUAL_STEPS: Final = 20
"""Two fingerprints at their default distance."""

EXPECTED_KIND: Final = {
    "hang": "not_entered",
    "gil": "not_entered",
    "stop": "not_entered",
    "crash": "dead",
    "slow": "straggler",
    "nan": "state_corrupt",
    "corrupt": "state_corrupt",
    "mismatch": "mismatch",
    "mismatch:size": "mismatch",
}
_LEAVES_BY_ITSELF: Final = frozenset({"crash", "mismatch:size"})
"""Faults that end the group before anybody can evict it."""

Show = Callable[[dict[str, Any], str], None]
"""Shows a snapshot of the monitor and what the demo is waiting for."""


@dataclass
class FaultReport:
    """What became of one fault. Times are seconds after the injection; None: did not happen."""

    kind: str
    target_rank: str
    target_group: str
    injected_s: float
    culprit_ranks: list[str] = field(default_factory=list)
    culprit_group: str | None = None
    evicted_group: str | None = None
    correct: bool = False
    to_firing: float | None = None
    to_evict_asked: float | None = None
    to_left_quorum: float | None = None
    to_survivor_commit: float | None = None
    to_rejoined: float | None = None
    reason: str | None = None
    """The monitor's sentence about the culprit."""
    held: str | None = None
    """Why nobody was evicted, where nobody was."""
    rejoined_host: str | None = None
    left_host: str | None = None
    survivors_crashed: list[str] = field(default_factory=list)
    to_survivors_crashed: float | None = None
    steps_lost: int | None = None
    """Committed steps that no living rank has any more; 0 while one survivor lives on."""
    training_went_on: bool = False
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain types, seconds rounded to milliseconds."""
        return {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


def wait_until_whole(fleet: Fleet, client: MonitorClient, show: Show, limit_s: float) -> None:
    """Wait until every rank of every group commits and no incident is open.

    Raises:
        FleetError: a process of the demo ended, or the fleet was not whole in time.
    """
    options = fleet.options
    deadline = time.monotonic() + limit_s
    why = "the monitor has not answered yet"
    while time.monotonic() < deadline:
        fleet.check_alive()
        try:
            snapshot = client.snapshot()
        except MonitorAwayError as exc:
            why = str(exc)
        else:
            reason = unhealthy(snapshot, options.groups, options.ranks_per_group)
            if reason is None:
                return
            why = reason
            show(snapshot, f"waiting for a whole fleet: {why}")
        time.sleep(POLL_S)
    raise FleetError(
        f"the fleet was not whole within {limit_s:.0f} s: {why} (logs: {fleet.run_dir})"
    )


def run_fault(fleet: Fleet, client: MonitorClient, kind: str, rank: str, show: Show) -> FaultReport:
    """Inject one fault and follow it until the group is back, or the limit."""
    known = {item["id"] for item in client.incidents()}
    group = rank.rpartition(".")[0]
    before = client.snapshot()
    best_step = max((item.get("step") or 0 for item in before["ranks"]), default=0)
    hosts = {item["group"]: item["host"] for item in before["groups"]}
    # Weights must have been seen to be equal by all before one that is not can be told from them.
    step = best_step + EQUAL_STEPS if kind == "corrupt" else None
    struck_s = _strike(fleet, client, kind, rank, show, step)
    report = FaultReport(kind, rank, group, injected_s=struck_s)
    report.left_host = hosts.get(group)
    deadline = time.monotonic() + _limit_s(fleet, kind)
    incidents: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        fleet.check_alive()
        try:
            snapshot, incidents = client.snapshot(), client.incidents()
        except MonitorAwayError as exc:
            report.problems = [f"monitor away: {exc}"]
        else:
            incidents = [item for item in incidents if item["id"] not in known]
            _read_incidents(report, incidents)
            _read_supervisors(report, fleet, snapshot, best_step)
            show(snapshot, _waiting_for(report))
            if _is_over(report, fleet.options.keeper):
                break
        time.sleep(POLL_S)
    _judge(report, incidents, fleet.options.keeper)
    return report


def _limit_s(fleet: Fleet, kind: str) -> float:
    if fleet.options.keeper:
        return KEEPER_LIMIT_S
    return ALONE_SLOW_LIMIT_S if kind == "slow" else ALONE_LIMIT_S


def _strike(  # noqa: PLR0917
    fleet: Fleet,
    client: MonitorClient,
    kind: str,
    rank: str,
    show: Show,
    step: int | None,
) -> float:
    fault_id = fleet.inject(kind, rank, step)
    deadline = time.monotonic() + STRIKE_LIMIT_S
    while time.monotonic() < deadline:
        marker = fleet.fired(fault_id)
        if marker is not None:
            return marker.time
        show(client.snapshot(), f"injecting {kind} into {rank}")
        time.sleep(0.1)
    raise FleetError(f"{kind} did not strike {rank} within {STRIKE_LIMIT_S:.0f} s: is it training?")


def _main_incident(report: FaultReport, incidents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The incident that fired for this fault: the evicting one, else the first to fire."""
    fired = [item for item in incidents if item["milestones"].get("firing_s") is not None]
    evicting = [item for item in fired if item["milestones"].get("evict_asked_s") is not None]
    expected = [item for item in fired if item["kind"] == EXPECTED_KIND[report.kind]]
    for candidates in (evicting, expected, fired):
        if candidates:
            return min(candidates, key=lambda item: float(item["milestones"]["firing_s"]))
    return None


def _read_incidents(report: FaultReport, incidents: list[dict[str, Any]]) -> None:
    incident = _main_incident(report, incidents)
    if incident is None:
        return
    report.culprit_ranks = list(incident["culprits"])
    report.culprit_group = incident["groups"][0] if incident["groups"] else None
    report.reason = incident["reason"]
    milestones = incident["milestones"]

    def after(name: str) -> float | None:
        at_s = milestones.get(name)
        return None if at_s is None else float(at_s) - report.injected_s

    report.to_firing = after("firing_s")
    report.to_evict_asked = after("evict_asked_s")
    report.to_left_quorum = after("left_quorum_s")
    report.to_survivor_commit = after("survivor_commit_s")
    report.to_rejoined = after("rejoined_s")
    if report.to_evict_asked is not None:
        report.evicted_group = report.culprit_group
    holds = [item for item in incident.get("decisions", []) if item["action"] == "hold"]
    report.held = f"{holds[0]['guard']}: {holds[0]['reason']}" if holds else None


def _read_supervisors(
    report: FaultReport, fleet: Fleet, snapshot: dict[str, Any], best_step: int
) -> None:
    for group in fleet.groups:
        events = [item for item in fleet.events(group) if item["time"] >= report.injected_s]
        left = [item for item in events if item["event"] == "left"]
        started = [item for item in events if item["event"] == "started"]
        if group == report.target_group and started:
            report.rejoined_host = started[-1]["host"]
        if group != report.target_group and left and group not in report.survivors_crashed:
            report.survivors_crashed.append(group)
            crashed_after = left[0]["time"] - report.injected_s
            report.to_survivors_crashed = min(
                crashed_after, report.to_survivors_crashed or crashed_after
            )
    survivors = [item for item in snapshot["ranks"] if item["group"] != report.target_group]
    if len(report.survivors_crashed) == len(fleet.groups) - 1:
        now_at = max((item.get("step") or 0 for item in survivors), default=0)
        report.steps_lost = max(0, best_step - now_at, report.steps_lost or 0)
    else:
        report.steps_lost = 0


def _is_over(report: FaultReport, keeper: bool) -> bool:
    if keeper:
        return report.to_rejoined is not None and report.to_survivor_commit is not None
    # Alone: over when the others commit again, unless it is a slow rank (they commit, slowly).
    return report.kind != "slow" and report.to_survivor_commit is not None


def _waiting_for(report: FaultReport) -> str:
    steps = (
        ("firing", report.to_firing),
        ("evict asked", report.to_evict_asked),
        ("left the quorum", report.to_left_quorum),
        ("survivors' commit", report.to_survivor_commit),
        ("group back", report.to_rejoined),
    )
    done = ", ".join(f"{name} +{value:.1f} s" for name, value in steps if value is not None)
    return f"{report.kind} in {report.target_rank}: {done or _not_yet(report.kind)}"


def _not_yet(kind: str) -> str:
    """Why nothing shows so far. A straggler is known by several windows of 5 s and more, after the
    start: a minute here.
    """
    if kind == "slow":
        return "nothing seen yet: its own and its peers' pace are being learnt, for about a minute"
    return "nothing seen yet"


def _judge(report: FaultReport, incidents: list[dict[str, Any]], keeper: bool) -> None:
    evicted = {
        group
        for item in incidents
        if item["milestones"].get("evict_asked_s") is not None
        for group in item["groups"]
    }
    problems = report.problems
    if report.to_firing is None:
        problems.append("not found")
    elif report.culprit_ranks != [report.target_rank]:
        problems.append(f"accused {', '.join(report.culprit_ranks)}, not {report.target_rank}")
    if evicted - {report.target_group}:
        problems.append(f"evicted the healthy {', '.join(sorted(evicted - {report.target_group}))}")
    report.correct = not problems
    report.training_went_on = report.to_survivor_commit is not None and not report.survivors_crashed
    if keeper and not report.training_went_on:
        problems.append("training did not go on")
    if keeper and report.kind not in _LEAVES_BY_ITSELF and report.evicted_group is None:
        problems.append(f"not evicted ({report.held or 'no decision'})")
    if keeper and report.to_rejoined is None:
        problems.append("the group did not come back")
