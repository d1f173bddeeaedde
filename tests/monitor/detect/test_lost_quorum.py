"""Requests for a quorum that are lost: who waits, what was replaced, what comes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkeeper.monitor.detect.detectors import Tick, inhibit
from lightkeeper.monitor.detect.lighthouse import APART
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.observation import LighthouseView, Observation, Snapshot
from lightkeeper.monitor.model.verdict import Kind, Severity, Verdict
from lightkeeper.worker_server.wire import Connection, StateReport, Took, Trouble
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet
from tests.monitor.fleet.rank import START_S

CUT_S = START_S + 20
GATE_S = CUT_S - 1.5
STATUS = "New quorum not ready, only have 0 participants [0/0 participants healthy]"


def asking(report: StateReport, now_s: float, usual_s: float = 0.1) -> StateReport:
    """It has asked for a quorum since the cut."""
    step, for_s = report.step, now_s - CUT_S
    assert step is not None
    still = replace(
        step, waits_in="quorum", waits_s=for_s, phase_age_s=for_s, progress=70, commits=60,
        last_commit_age_s=for_s + 1, times={"quorum": Took(60, 60 * usual_s)},
    )  # fmt: skip
    return replace(report, step=still, timeouts={"quorum": 60.0})


def cut(
    *,
    requests: int | None = 0,
    gate_s: float | None = None,
    change: Callable[[StateReport], StateReport] = lambda report: report,
    but: str = "",
    usual_s: float = 0.1,
) -> Drive:
    """All ranks, `but` one, ask from the cut on; so many requests are at the Lighthouse."""

    def ask(seen: Observation, now_s: float) -> Observation:
        report = seen.report
        if report is None or seen.rank == but:
            return seen
        return replace(seen, outcome=change(asking(report, now_s, usual_s)))

    def alter(seen: Snapshot) -> Snapshot:
        view = seen.lighthouse
        if seen.now_s < CUT_S or not isinstance(view, LighthouseView):
            return seen
        return replace(
            seen,
            observations=tuple(ask(each, seen.now_s) for each in seen.observations),
            lighthouse=replace(view, requests=requests, status=STATUS),
            gate_began_s=gate_s,
        )

    return Drive(SimFleet(2, 2, source="torchft"), alter=alter)


def lost(drive: Drive, ticks: int) -> Incident:
    drive.run(ticks)
    assert drive.kinds() == ["quorum_lost"]
    assert not drive.evicts
    assert not drive.accused()
    return drive.incident("quorum_lost")


def test_it_says_who_waits_what_was_replaced_and_when_it_ends_and_accuses_nobody() -> None:
    incident = lost(cut(gate_s=GATE_S), 28)
    assert incident.severity is Severity.CRITICAL
    assert incident.culprits == incident.candidates == ()
    assert len(incident.verdict.victims) == 4
    assert incident.verdict.reason == (
        "all 4 ranks of 2 groups ask for a quorum for 6.0 s, and the Lighthouse has nobody's "
        "request: what is missing was lost with the gate, which was replaced at 13:46:58 UTC. "
        "Without an answer their quorum timeout ends all of them in 54 s, and the job goes back to "
        "its last checkpoint, or loses all of its 88 steps"
    )
    assert incident.verdict.evidence["Lighthouse"] == STATUS


def test_nothing_else_is_said_however_long_it_lasts() -> None:
    lost(cut(), 80)


def test_it_says_what_was_done() -> None:
    shut = Connection("10.0.0.1:40000", "10.0.0.9:29511", Trouble.SHUT, 1.0, "lighthouse", 99, 5)
    dead = replace(shut, trouble=Trouble.UNACKNOWLEDGED, for_s=9.0)

    def change(report: StateReport) -> StateReport:
        rows = {"rg_0.0": (shut, dead), "rg_1.0": (dead, dead), "rg_1.1": (dead,)}
        return replace(report, connections=rows.get(report.identity.rank, ()))

    reason = lost(cut(change=change), 28).verdict.reason
    assert "Dead connections of rg_0.0 were shut, so that TorchFT asks again. The kernel" in reason
    assert "The kernel says: rg_1.0 has sent 99 bytes to the lighthouse at 10.0.0.9:295" in reason
    assert "5 retries (rg_1.1 too). Without" in reason
    assert "rg_0.0 has sent" not in reason


def test_it_says_how_many_requests_there_are() -> None:
    assert "has 1 of 2 requests" in lost(cut(requests=1), 28).verdict.reason


@pytest.mark.parametrize(
    "drive",
    [cut(requests=2), cut(requests=None), cut(but="rg_1.1"), cut(usual_s=5.0)],
    ids=["the Lighthouse has all", "its page does not say", "one rank trains", "long quorums"],
)
def test_it_is_silent_if(drive: Drive) -> None:
    drive.run(29)
    assert "quorum_lost" not in drive.kinds()


def test_it_is_over_when_the_job_goes_on() -> None:
    drive = cut()
    altered, drive.alter = drive.alter, lambda seen: seen
    drive.run(20)
    drive.alter = altered
    drive.run(9)
    drive.alter = lambda seen: seen
    assert lost(drive, 20).resolution == "the job continues"


def test_it_explains_what_names_nobody_and_who_is_apart() -> None:
    kinds = (Kind.DEADLOCK, Kind.LIGHTHOUSE_AWAY, Kind.QUORUM_LOST)
    verdicts = [Verdict(kind=kind, reason="", since_s=1.0) for kind in kinds]
    verdicts.append(Verdict(kind=Kind.REPLICA_LAG, reason="", since_s=1.0, signature=APART))
    kept, _ = inhibit(Tick(verdicts))
    assert [verdict.kind for verdict in kept] == [Kind.QUORUM_LOST]
