"""What ranks of the simulated fleet tell, changed before the monitor sees it: `Drive(alter=)`."""

from __future__ import annotations

from collections.abc import Callable

from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot, Unreachable
from lightkeeper.worker_server.wire import StateReport, StepState
from tests.changed import replace

Alter = Callable[[Snapshot], Snapshot]


def observed(change: Callable[[Observation], Observation]) -> Alter:
    """Every observation changed so."""
    return lambda seen: replace(seen, observations=tuple(map(change, seen.observations)))


AWAY = Unreachable(Failure.TIMEOUT, "no answer")


def without_records(seen: Snapshot) -> Snapshot:
    """No flight record comes."""
    return replace(seen, records=dict.fromkeys(seen.records, AWAY))


def unanswered(*ranks: str, after: int = 15) -> Alter:
    """Their WorkerServers answer nothing any more."""

    def one(seen: Observation) -> Observation:
        return replace(seen, outcome=AWAY) if seen.rank in ranks else seen

    def alter(seen: Snapshot) -> Snapshot:
        if seen.tick <= after:
            return seen
        records = {rank: record for rank, record in seen.records.items() if rank not in ranks}
        return replace(observed(one)(seen), records=records)

    return alter


def unregistered(*ranks: str) -> Alter:
    def alter(seen: Snapshot) -> Snapshot:
        others = tuple(each for each in seen.observations if each.rank not in ranks)
        records = {rank: record for rank, record in seen.records.items() if rank not in ranks}
        return replace(seen, observations=others, records=records)

    return alter


def recordless(*ranks: str) -> Alter:
    """They answer, but not in time with their flight record."""
    return lambda seen: replace(
        seen, records={rank: AWAY if rank in ranks else kept for rank, kept in seen.records.items()}
    )


def reports(change: Callable[[StateReport], StateReport], *ranks: str, after: int = 0) -> Alter:
    """The reports of these ranks, or of all, changed so from this tick on."""

    def one(seen: Observation) -> Observation:
        report = seen.report
        if report is None or (ranks and seen.rank not in ranks):
            return seen
        return replace(seen, outcome=change(report))

    alter = observed(one)
    return lambda seen: seen if seen.tick < after else alter(seen)


def process(**changes) -> Callable[[StateReport], StateReport]:
    """What the kernel says of it, changed so."""
    return lambda report: replace(report, process=replace(report.process, **changes))


def steps(change: Callable[[StepState], StepState], *ranks: str) -> Alter:
    """What they tell of their steps, changed so."""

    def one(report: StateReport) -> StateReport:
        return report if report.step is None else replace(report, step=change(report.step))

    return reports(one, *ranks)


def stays(rank: str, after: int) -> Alter:
    """This rank reports from this tick on that it stands where it stood then."""
    kept: list[tuple[StateReport, StepState, float]] = []

    def alter(seen: Snapshot) -> Snapshot:
        report = seen.by_rank[RankName(rank)].report
        if not kept and report is not None and report.step is not None:
            kept.append((report, report.step, seen.now_s))
        stood, step, since_s = kept[0]
        for_s = seen.now_s - since_s
        commit_s = None if step.last_commit_age_s is None else step.last_commit_age_s + for_s
        step = replace(step, phase_age_s=step.phase_age_s + for_s, last_commit_age_s=commit_s)
        return reports(lambda _: replace(stood, step=step), rank)(seen)

    return lambda seen: seen if seen.tick < after else alter(seen)
