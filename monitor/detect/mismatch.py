"""Inconsistent collectives (class H2): all entered, not the same thing (ALGORITHMS.md 4).

Theory of operation. Ring heads raise a suspicion, see `suspicion`; it is decided by the flight
records of the whole group, as `lightkeeper analyze` decides: by the majority, and on a tie by what
each rank called at this place before. Nobody is accused where both are silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from lightkeeper.monitor.detect.corrupt import spells
from lightkeeper.monitor.detect.endings import End, end_of
from lightkeeper.monitor.detect.graph import Stuck, WaitGraph
from lightkeeper.monitor.detect.history import History, Reading
from lightkeeper.monitor.detect.recorded import (
    MISSING,
    UNREAD,
    Opinion,
    before_death,
    lane,
    opinion,
    opinion_across,
)
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.wording import with_places
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import Kind, RankStanding, Verdict
from lightkeeper.monitor.model.wording import does
from lightkeeper.monitor.records.findings import Fault, Finding
from lightkeeper.monitor.records.job import NONE
from lightkeeper.worker_server.wire import ACROSS, RingEntry

# -- suspicion ---------------------------------------------------------------------------------
# A collective is suspicious when none of its members gets out, when one of them died (gloo kills
# with SIGABRT on a size mismatch), or when the absent wait elsewhere, with no rank alone (an extra
# or a skipped call). So is a group that stands still, and no head shows in what.

_AGAIN_S = 3.0
"""After this long a record is requested again if it lacks the call its rank reports to be in.
Shorter: a false one has its group's records judged again in each tick."""


def suspicious_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose flight records would settle a suspicion of this tick; sorted."""
    wanted: set[RankName] = set()
    for stuck in _suspicious(history, graph):
        wanted.update(r for r in stuck.members if _lacks(history, r, stuck))
    for members in history.groups().values():
        if len(members) > 1 and any(graph.standing[t.rank] is RankStanding.DEAD for t in members):
            wanted.update(
                t.rank for t in members if _lacks(history, t.rank) or before_death(history, t)
            )
    return tuple(sorted(r for r in wanted if history.tracks[r].fresh is not None))


def _victims(graph: WaitGraph, stuck: Stuck, culprits: Iterable[RankName]) -> tuple[RankName, ...]:
    return tuple(sorted({*graph.victims(stuck.members), *stuck.members} - set(culprits)))


def began_s(history: History, ranks: Iterable[RankName]) -> float:
    """When the first of these ranks died or began what it does now."""
    began = []
    for rank in ranks:
        track = history.tracks[rank]
        if track.died_s is not None:
            began.append(track.died_s)
        elif track.report_s is not None and track.step is not None:
            began.append(track.report_s - track.step.phase_age_s)
    return min(began, default=history.now_s)


def _lacks(history: History, rank: RankName, stuck: Stuck | None = None) -> bool:
    reading, age_s = history.asked(history.tracks[rank]), history.record_age_s(rank)
    if reading is None or age_s > history.config.record_repeat_s:
        return True
    if stuck is not None and age_s >= stuck.stall_s:
        return True
    if stuck is None or stuck.recorded or rank in stuck.absent:
        return False
    at = stuck.process_group, stuck.seq
    lacking = all((call.group, call.seq) != at for call in reading.calls)
    return lacking and age_s >= min(_AGAIN_S, history.config.record_repeat_s)


def _suspicious(history: History, graph: WaitGraph) -> Iterable[Stuck]:
    for stuck in graph.stuck:
        if stuck.transfer or any(history.tracks[rank].forming for rank in stuck.absent):
            continue  # its two ends need not call the same; `forming` says who left a group out
        enough = stuck.stall_s >= _patience_s(history, stuck)
        if enough and stuck.complete:  # ranks that got out of it are members too
            passed = (
                track.rank
                for track in history.groups()[stuck.group]
                for head in track.heads
                if head.name == stuck.process_group and head.enqueued >= stuck.seq
            )
            yield replace(stuck, joined=tuple(sorted({*stuck.joined, *passed})))
        elif enough and _crossed(graph, stuck):
            yield stuck
    for quiet in graph.quiet:
        if quiet.stall_s >= _patience_s(history, quiet):
            yield quiet


def _patience_s(history: History, stuck: Stuck) -> float:
    track = history.tracks[stuck.joined[0]]
    if not stuck.complete:
        return history.hang_after_s(track)
    return max(history.config.mismatch_suspect_s, 3 * history.learned_step_s(track))


def _crossed(graph: WaitGraph, stuck: Stuck) -> bool:
    """True if the absent ranks wait elsewhere, or cannot be seen, and no rank is seen alone.

    A rank that waits for absent ranks that wait for each other is their victim.
    """
    elsewhere = (RankStanding.WAITING, RankStanding.HELD, RankStanding.SILENT)
    apart = any(
        set(stuck.absent) & set(circle) and not set(stuck.joined) & set(circle)
        for circle in graph.circles
    )
    waits = all(graph.standing[rank] in elsewhere for rank in stuck.absent)
    return waits and not apart and not graph.suspects


def _of_the_dead(history: History, graph: WaitGraph) -> Iterable[Stuck]:
    """Collectives that dead ranks were in, as if all members were inside."""
    if RankStanding.DEAD not in graph.standing.values():
        return
    for group, members in history.groups().items():
        if len(members) < 2:
            continue
        for track in members:
            if graph.standing[track.rank] is not RankStanding.DEAD:
                continue
            record = history.reading(track)
            if record is None or before_death(history, track):
                continue
            for entry in _last_unfinished(record):
                members_of, world = record.answer.members, range(track.identity.world_size)
                places: Sequence[int] = members_of.get(entry.group) or world
                yield Stuck(
                    group=group,
                    process_group=entry.group,
                    seq=entry.seq,
                    size=len(places),
                    joined=tuple(t.rank for t in members if t.identity.group_rank in places),
                )


def _last_unfinished(record: Reading) -> Iterable[RingEntry]:
    """One for each process group inside the replica group; groups across it have other members."""
    own = (entry for entry in record.calls if not entry.group.startswith(ACROSS))
    last = {entry.group: entry for entry in own}
    # it did not get out, or with an error
    return (call for call in last.values() if call.exit_age_s is None or call.error is not None)


# -- differing across --------------------------------------------------------------------------

_MOST = 64
"""Largest lane whose records are requested, in ranks."""


def differing_across(history: History) -> Iterable[Verdict]:
    """A rank killed by a peer's different call across groups (H2). One verdict per lane, whose
    records are read once.

    Gloo ends a rank whose neighbour sends more or less than it expects: the dead rank has met the
    mismatch, but did not necessarily cause it. The records of the ranks that share the process
    group show what each has called there; those of the dead are in its black box. Requested only at
    such a death.
    """
    last = {track.identity.group_rank: track for track in _torn(history)}
    for track in last.values():
        yield from _judge(history, track)


def torn_records(history: History) -> tuple[RankName, ...]:
    """Ranks whose records would show the mismatch, if not read since the death; those that could
    not be read, again after `record_repeat_s`.
    """
    return tuple(
        mate.rank
        for track in _torn(history)
        for mate in lane(history, track.identity.group_rank)
        if (reading := history.asked(mate)) is None
        or reading.at_s < track.death_s
        or (reading.garbage and history.now_s - reading.at_s > history.config.record_repeat_s)
    )


def _torn(history: History) -> Iterable[RankTrack]:
    """Dead ranks whose exception blames others, with ranks of other groups to compare."""
    for track in history.present():
        report = track.report
        if report is None or report.process.alive or report.ending is None:
            continue
        others = len(lane(history, track.identity.group_rank))
        if end_of(track) is End.PEERS and 1 < others <= _MOST:
            yield track


def _judge(history: History, dead: RankTrack) -> Iterable[Verdict]:
    tracks = lane(history, dead.identity.group_rank)
    said = opinion_across(history, tracks, dead.death_s)
    lane_ranks = {track.rank for track in tracks}
    for finding, culprits in said.accusing:
        if finding.kind is Fault.MISMATCH and set(culprits) <= lane_ranks:
            yield Verdict(
                kind=Kind.MISMATCH,
                culprits=culprits,
                reason=f"{finding.reason} {dead.rank} died of it",
                confidence=finding.confidence,
                since_s=dead.death_s,
                victims=tuple(sorted(lane_ranks - set(culprits))),
                evidence={**finding.evidence, "source": "flight records across groups"},
                signature=f"mismatch:across:{finding.op}",
                settled=True,
            )
            return


# -- mismatch ----------------------------------------------------------------------------------

_KINDS = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)


def mismatch(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Different collectives in a group (H2), by the flight records at hand. A verdict per group."""
    verdicts: dict[GroupName, Verdict] = {}
    for stuck in (*_suspicious(history, graph), *_of_the_dead(history, graph)):
        if stuck.group in verdicts:
            continue
        verdict = threads_mixed(history, stuck) or _by_records(history, graph, stuck)
        if verdict is not None:
            verdicts[stuck.group] = verdict
    return (verdicts[group] for group in sorted(verdicts))


def threads_mixed(history: History, stuck: Stuck) -> Verdict | None:
    """Two threads that use one process group, if the records of its ranks show it.

    Nothing orders their calls, so whatever differs is the program's, even if a minority differs.
    """
    said = opinion(history, stuck.group)
    finding = next((each for each in said.findings if each.kind is Fault.TWO_THREADS), None)
    if finding is None:
        return None
    victims = said.names(finding.victims)
    return Verdict(
        kind=Kind.MISMATCH,
        groups=(stuck.group,),
        reason=finding.reason,
        since_s=began_s(history, victims or stuck.members),
        victims=victims,
        evidence=dict(finding.evidence),
        signature=f"mismatch:two threads:{stuck.process_group}",
    )


def _by_records(history: History, graph: WaitGraph, stuck: Stuck) -> Verdict | None:
    """What the group's records say of it, once all were read since the call began.

    None where they show no difference, or, without a culprit, a circle: the deadlock detector
    reports it. Where a call that the others wait past has no counterpart, the heads show that much.
    """
    said = opinion(history, stuck.group, within_s=stuck.stall_s)
    if said is UNREAD:
        return None
    findings = (f for f in said.findings if f.live or stuck not in graph.quiet)
    finding = next((f for f in findings if f.kind in _KINDS), None)
    circle = any(each.kind is Fault.ORDER_INVERSION for each in said.findings)
    if circle and not (finding and finding.culprits):
        return None
    if finding is None:
        return _uneven(history, graph, stuck, said)
    culprits = said.involved(finding) or stuck.members
    began = history.now_s - stuck.stall_s if stuck.recorded else began_s(history, culprits)
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        reason=with_places(finding.reason, history.groups()[stuck.group]),
        confidence=finding.confidence,
        since_s=began,
        victims=_victims(graph, stuck, culprits),
        evidence=finding.evidence,
        signature=f"mismatch:{stuck.process_group}:{finding.op}",
    )


def _uneven(history: History, graph: WaitGraph, stuck: Stuck, said: Opinion) -> Verdict | None:
    """A call without a counterpart, which the others wait past, and no record says more."""
    others = any(each.kind not in MISSING for each, _ in said.accusing)
    unseen = any(graph.standing[rank] is RankStanding.SILENT for rank in stuck.absent)
    if stuck.complete or others or unseen:
        return None
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=stuck.members,
        reason=f"{does(stuck.joined, 'stands')} in {' and '.join(stuck.ops) or 'a call'} "
        f"(collective {stuck.seq} of {stuck.process_group!r}) that "
        f"{does(sorted(stuck.absent), 'has')} not entered while waiting elsewhere: cannot tell "
        "whether the call is extra or was skipped",
        since_s=began_s(history, stuck.members),
        victims=_victims(graph, stuck, stuck.members),
        signature=f"mismatch:{stuck.process_group}:{'/'.join(stuck.ops)}",
    )


# -- silent mismatch ---------------------------------------------------------------------------

_SILENT: Final = (Fault.SILENT_MISMATCH, Fault.SKIPPED, Fault.EXTRA)
"""Differences with which a group may train on."""
LARGEST: Final = 8
"""Ranks of a group that is sampled: a tick parses and compares some 4,096 calls of each."""
_TOLD_TICKS: Final = 3.5
"""Ticks for which readings are used after they came: enough sweeps to fire, few analyses."""


def silent_mismatch(history: History) -> Iterable[Verdict]:
    """Mismatches that hang nothing (H2): the numbers are wrong and training continues. One verdict
    per group whose records were just read.

    Gloo moves bytes: a rank that sums the same bytes as integers where its peers sum floats stops
    nobody (ALGORITHMS.md section 4). Nothing raises a suspicion there, so the records of small
    groups are read in turn, at most one group a tick, and the analysis compares what all of a group
    completed. A group whose sum is not finite, though its parts were, comes first.

    The program is at fault, and an eviction would not undo it: it is shown, nobody is evicted.
    """
    for group, tracks in history.groups().items():
        if _just_read(history, tracks):
            yield from _judge_silent(history, group)


def sampled_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks of the one healthy group whose flight records are to be read next; sorted."""
    if not history.config.sample_s or graph.suspects:
        return ()
    spoilt = _spoilt_since(history)
    late = {
        group: _late_s(history, members, spoilt.get(group, inf))
        for group, members in history.groups().items()
        if 1 < len(members) == members[0].identity.world_size <= LARGEST
        and all(track.participating for track in members)
    }
    latest = max(late, key=lambda group: (late[group], group), default=None)
    if latest is None or late[latest] < 0:
        return ()
    return tuple(sorted(track.rank for track in history.groups()[latest]))


def _late_s(history: History, members: tuple[RankTrack, ...], spoilt_s: float) -> float:
    """Seconds since a group's records were due; infinite if older than `spoilt_s`."""
    ages_s = [history.record_age_s(track.rank) for track in members]
    if inf in ages_s or max(ages_s) > spoilt_s:
        return inf
    due_s = map(history.sample_after_s, members)
    return max(age_s - after_s for age_s, after_s in zip(ages_s, due_s, strict=True))


def _spoilt_since(history: History) -> Mapping[GroupName, float]:
    """Groups whose sum of finite numbers was not finite -> for how many seconds: read at once."""
    return {
        spell.group: history.now_s - spell.since_s
        for spell in spells(history)
        if spell.spoilt.where == "group"
    }


def _just_read(history: History, members: tuple[RankTrack, ...]) -> bool:
    config = history.config
    if not config.sample_s or not 1 < len(members) <= LARGEST:
        return False
    if any(track.stall_s >= history.still_after_s for track in members):
        return False  # read on a suspicion: others judge that
    readings, limit_s = map(history.asked, members), _TOLD_TICKS * config.tick_s
    return all(read is not None and history.now_s - read.came_s <= limit_s for read in readings)


def _judge_silent(history: History, group: GroupName) -> Iterable[Verdict]:
    said = opinion(history, group)
    for finding in said.findings:
        if finding.live or finding.kind not in _SILENT:
            continue  # where ranks wait, those judge that know how long they may
        since_s = _since_s(said, finding)
        if since_s is not None and history.now_s - since_s <= 2 * history.config.sample_s:
            label = "?" if finding.group is None else said.job.groups[finding.group].label
            yield Verdict(
                kind=Kind.MISMATCH,
                culprits=said.involved(finding),
                groups=(group,),
                reason=finding.reason,
                confidence=finding.confidence,
                since_s=since_s,
                evidence=dict(finding.evidence),
                signature=f"mismatch:silent:{label}:{finding.op}",
                spare="nothing hangs, and an evicted group would do the same again: look at "
                "the call",
            )
            return


def _since_s(said: Opinion, finding: Finding) -> float | None:
    """When it was called, by the monitor's clock; None if the records do not show it."""
    columns = said.job.columns
    calls = (columns["group"] == finding.group) & (columns["seq"] == finding.sequence)
    times = [ns for ns in columns["created_ns"][calls].tolist() if ns != NONE]
    return min(times) / 1e9 if times else None
