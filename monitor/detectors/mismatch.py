"""Inconsistent collectives (class H2): all entered, not the same thing (ALGORITHMS.md 4).

Theory of operation. Phase 1, on ring heads: a collective is suspicious when every member is
inside it and none gets out, when a process died in a group of more than one (gloo kills
with SIGABRT on a size mismatch, within a second), or when some are inside and the absent wait
elsewhere, nobody being alone (an extra or a skipped call). Phase 2, on flight records of
those ranks and of a few in other groups: signatures of the same (process group, sequence),
walked back to the first divergence. A strict majority makes the minority the culprits. On
a tie the program itself decides, for every group runs the same: what these ranks called at
the same `nth` in earlier attempts, and what the other groups call there. When both are
silent, or contradict each other, nobody is accused and both are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from monitor.analysis.finding import Fault
from monitor.detectors.recorded import opinion, sure
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, Stuck, WaitGraph
from monitor.detectors.wording import listed, plural
from monitor.flight_recorder import Entry, RankRecord, Signature
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName
from worker_server.wire import ACROSS

_KINDS = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)
_COHORT_GROUPS = 2
"""Other groups whose records are read to learn what the program does at this place."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """A suspicious collective of one process group."""

    group: GroupName
    process_group: str
    seq: int
    size: int
    members: tuple[RankName, ...]
    ahead: tuple[RankName, ...] = ()
    """Members inside, when the others wait elsewhere; empty when all are inside."""
    stall_s: float = inf
    """At least so long nobody inside moved: an older record shows another moment."""


def mismatch(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group, on the flight records at hand."""
    found: dict[GroupName, Verdict] = {}
    for scene in (*_stuck_scenes(history, graph), *_dead_scenes(history, graph)):
        if scene.group in found:
            continue
        verdict = _judge(history, graph, scene)
        if verdict is not None:
            verdict = _with_second_opinion(history, verdict, scene.group)
        if verdict is not None:
            found[scene.group] = verdict
    return tuple(found[group] for group in sorted(found))


def wanted_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose flight records would settle a suspicion of this tick; sorted."""
    wanted: set[RankName] = set()
    scenes = tuple(_stuck_scenes(history, graph))
    for scene in scenes:
        wanted.update(r for r in scene.members if _lacks(history, r, scene))
    involved = {scene.group for scene in scenes}
    for group, members in history.groups().items():
        if len(members) > 1 and any(graph.standing[t.rank] is Standing.DEAD for t in members):
            involved.add(group)
            wanted.update(
                t.rank for t in members if _lacks(history, t.rank) or _before_death(history, t)
            )
    if involved:
        others = [
            next((t for t in members if graph.standing[t.rank] is not Standing.SILENT), None)
            for group, members in history.groups().items()
            if group not in involved
        ]
        cohort = [track.rank for track in others if track is not None][:_COHORT_GROUPS]
        wanted.update(rank for rank in cohort if _lacks(history, rank))
    return tuple(sorted(r for r in wanted if history.tracks[r].fresh is not None))


def _lacks(history: History, rank: RankName, scene: _Scene | None = None) -> bool:
    record, age_s = history.record(history.tracks[rank]), history.record_age_s(rank)
    if record is None or age_s is None or age_s > history.config.record_repeat_s:
        return True
    if scene is not None and age_s >= scene.stall_s:
        return True
    inside = scene is not None and (not scene.ahead or rank in scene.ahead)
    return inside and scene is not None and record.at(scene.process_group, scene.seq) is None


def _before_death(history: History, track: RankTrack) -> bool:
    """Whether a dead rank's record was read before it died: its last call is not in it."""
    age_s = history.record_age_s(track.rank)
    return track.died_s is not None and age_s is not None and history.now_s - age_s <= track.died_s


def _with_second_opinion(history: History, verdict: Verdict, group: GroupName) -> Verdict | None:
    """The same verdict, unless the group's whole records contradict it, or know what it does not.

    The scene is one collective and the habit at its place; the records hold every process group.
    None when they show a circle, which is the deadlock detector's to tell.
    """
    said = opinion(history, group)
    if said is None:
        return verdict
    unsure = verdict.confidence is Confidence.UNSURE
    if unsure and any(one.kind is Fault.ORDER_INVERSION for one in said.findings):
        return None
    findings = [one for one in said.findings if one.kind in _KINDS]
    named = {rank for one in findings if sure(one) for rank in said.names(one.culprits)}
    if not named or named == set(verdict.culprits):
        return verdict
    if unsure and named < set(verdict.culprits):
        found = next(one for one in findings if sure(one))
        return replace(
            verdict,
            culprits=tuple(sorted(named)),
            victims=tuple(sorted({*verdict.victims, *verdict.culprits} - named)),
            confidence=found.confidence,
            reason=found.reason,
        )
    if named & set(verdict.culprits):
        return verdict
    both = tuple(sorted(named | set(verdict.culprits)))
    return replace(
        verdict,
        culprits=both,
        victims=tuple(rank for rank in verdict.victims if rank not in both),
        confidence=Confidence.UNSURE,
        reason=f"{verdict.reason}; but by all their records it is {listed(tuple(sorted(named)))}: "
        "cannot tell",
    )


# -- phase 1: where to look ----------------------------------------------------------------


def _stuck_scenes(history: History, graph: WaitGraph) -> Iterable[_Scene]:
    for stuck in graph.stuck:
        ahead = () if stuck.complete else stuck.joined
        if stuck.stall_s < _patience_s(history, stuck) or (ahead and not _crossed(graph, stuck)):
            continue
        members = {*stuck.joined, *stuck.absent}
        if stuck.complete:  # those that got out of it are members too
            members |= {t.rank for t in history.groups()[stuck.group] if _passed(t, stuck)}
        yield _Scene(
            group=stuck.group,
            process_group=stuck.process_group,
            seq=stuck.seq,
            size=stuck.size,
            members=tuple(sorted(members)),
            ahead=ahead,
            stall_s=stuck.stall_s,
        )


def _patience_s(history: History, stuck: Stuck) -> float:
    track = history.tracks[stuck.joined[0]]
    if not stuck.complete:
        return history.hang_after_s(track)
    return max(history.config.mismatch_suspect_s, 3 * history.learned_step_s(track))


def _crossed(graph: WaitGraph, stuck: Stuck) -> bool:
    """Whether the absent wait elsewhere and nobody anywhere is to be seen alone."""
    elsewhere = (Standing.WAITING, Standing.HELD)
    return not graph.suspects and all(graph.standing[r] in elsewhere for r in stuck.absent)


def _passed(track: RankTrack, stuck: Stuck) -> bool:
    return track.report is not None and any(
        head.name == stuck.process_group and head.enqueued >= stuck.seq
        for head in track.report.heads
    )


def _dead_scenes(history: History, graph: WaitGraph) -> Iterable[_Scene]:
    for group, members in history.groups().items():
        if len(members) < 2:
            continue
        for track in members:
            record = history.record(track)
            dead = graph.standing[track.rank] is Standing.DEAD
            if not dead or record is None or _before_death(history, track):
                continue
            for entry in _last_unfinished(record):
                known = record.members.get(entry.process_group, ())
                places = known or tuple(range(track.identity.world_size))
                yield _Scene(
                    group=group,
                    process_group=entry.process_group,
                    seq=entry.seq,
                    size=len(places),
                    members=tuple(t.rank for t in members if t.identity.group_rank in places),
                )


def _last_unfinished(record: RankRecord) -> Iterable[Entry]:
    """Of each process group inside the replica group; those across it have other members."""
    own = (entry for entry in record.entries if not entry.process_group.startswith(ACROSS))
    last = {entry.process_group: entry for entry in own}
    return (entry for entry in last.values() if entry.unfinished)


# -- phase 2: who differs ------------------------------------------------------------------


def _judge(history: History, graph: WaitGraph, scene: _Scene) -> Verdict | None:
    records = {
        rank: record
        for rank in scene.members
        if (record := history.record(history.tracks[rank])) is not None
    }
    if scene.ahead:
        return _judge_ahead(history, graph, scene, records)
    seq = _first_divergence(records, scene)
    if seq is None:
        return None
    entries = _entries(records, scene.process_group, seq)
    sides: dict[Signature, list[RankName]] = {}
    for rank, entry in sorted(entries.items()):
        sides.setdefault(entry.signature, []).append(rank)
    right = next((side for side, ranks in sides.items() if 2 * len(ranks) > scene.size), None)
    how = "the majority"
    if right is None:
        right = _expected(history, records, scene, next(iter(entries.values())))
        how = "these ranks in earlier attempts and the other groups"
    if right is not None and right not in sides:
        right = None
    return _verdict(history, graph, scene, sides=sides, entries=entries, right=right, how=how)


def _entries(
    records: Mapping[RankName, RankRecord], process_group: str, seq: int
) -> dict[RankName, Entry]:
    found = {rank: record.at(process_group, seq) for rank, record in records.items()}
    return {rank: entry for rank, entry in found.items() if entry is not None}


def _first_divergence(records: Mapping[RankName, RankRecord], scene: _Scene) -> int | None:
    """The first of the diverging collectives in a row that ends at the scene's; None: none."""
    first: int | None = None
    for seq in range(scene.seq, 0, -1):
        entries = _entries(records, scene.process_group, seq)
        if len({entry.signature for entry in entries.values()}) < 2:
            break
        first = seq
    return first


def _expected(
    history: History, records: Mapping[RankName, RankRecord], scene: _Scene, entry: Entry
) -> Signature | None:
    """What the program calls at this place; None when nobody knows or witnesses disagree."""
    if entry.nth is None:
        return None
    own = _habit(
        earlier
        for record in records.values()
        for earlier in record.of(scene.process_group)
        if earlier.nth == entry.nth
        and not earlier.unfinished
        and earlier.attempt is not None
        and entry.attempt is not None
        and earlier.attempt < entry.attempt
    )
    others = _habit(
        theirs
        for track in history.present()
        if track.group != scene.group and (record := history.record(track)) is not None
        for theirs in record.of(scene.process_group)
        if theirs.nth == entry.nth
    )
    known = {habit for habit in (own, others) if habit is not None}
    return known.pop() if len(known) == 1 else None


def _habit(entries: Iterable[Entry]) -> Signature | None:
    """The one signature of most of the entries; None when there is none, or no clear one."""
    counts = Counter(entry.signature for entry in entries).most_common(2)
    if not counts or 2 * counts[0][1] <= sum(count for _, count in counts):
        return None
    return counts[0][0]


def _verdict(
    history: History,
    graph: WaitGraph,
    scene: _Scene,
    *,
    sides: Mapping[Signature, list[RankName]],
    entries: Mapping[RankName, Entry],
    right: Signature | None,
    how: str,
) -> Verdict:
    said = "; ".join(
        f"{listed(ranks)} {plural(ranks, 'calls', 'call')} {side}" for side, ranks in sides.items()
    )
    place = f"collective {next(iter(entries.values())).seq} of {scene.process_group!r}"
    odd = [rank for side, ranks in sides.items() for rank in ranks if side != right]
    culprits = tuple(sorted(odd))
    if right is None:
        reason = f"in {place} of {scene.group}, {said}: cannot tell which of them is wrong"
    else:
        site = entries[culprits[0]].site
        where = f" (at {site})" if site is not None else ""
        reason = f"in {place} of {scene.group}, {said}: {how} called {right}, so "
        reason += f"{listed(culprits)} {plural(culprits, 'is', 'are')} wrong{where}"
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        groups=(scene.group,),
        reason=reason,
        confidence=Confidence.UNSURE if right is None else Confidence.LIKELY,
        since_s=_since_s(history, culprits),
        victims=tuple(sorted({*graph.victims(scene.members), *scene.members} - set(culprits))),
        evidence={
            rank: f"{entry.signature} at {entry.site or '?'}" for rank, entry in entries.items()
        },
        signature=_place_signature(scene.process_group, sides),
    )


def _place_signature(process_group: str, sides: Iterable[Signature]) -> str:
    ops = sorted({side.op for side in sides})
    return f"mismatch:{process_group}:{'/'.join(ops)}"


def _since_s(history: History, ranks: Iterable[RankName]) -> float:
    began = []
    for rank in ranks:
        track = history.tracks[rank]
        if track.died_s is not None:
            began.append(track.died_s)
        elif track.report_s is not None and track.step is not None:
            began.append(track.report_s - track.step.phase_age_s)
    return min(began, default=history.now_s)


# -- an extra or a skipped call ------------------------------------------------------------


def _judge_ahead(
    history: History, graph: WaitGraph, scene: _Scene, records: Mapping[RankName, RankRecord]
) -> Verdict | None:
    """Some are inside a collective that the others have not reached, and all wait for each other.

    Whoever is ahead made an extra call unless the program always makes it there; then the
    others skipped theirs.
    """
    entries = _entries(
        {r: records[r] for r in scene.ahead if r in records}, scene.process_group, scene.seq
    )
    if not entries:
        return None
    entry = next(iter(entries.values()))
    usual = _usual_calls(history, records, scene, entry)
    behind = tuple(rank for rank in scene.members if rank not in scene.ahead)
    if usual is None:
        culprits, end = scene.members, "cannot tell whether the call is extra or was skipped"
    elif entry.nth is not None and entry.nth >= usual:
        culprits = scene.ahead
        end = f"the program makes {usual} calls there in a step, so the call is one too many"
    else:
        culprits = behind
        end = f"the program makes {usual} calls there in a step, so {listed(behind)} left it out"
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=tuple(sorted(culprits)),
        groups=(scene.group,),
        reason=f"{listed(scene.ahead)} {plural(scene.ahead, 'stands', 'stand')} in "
        f"{entry.signature} (collective {scene.seq} of {scene.process_group!r}) that "
        f"{listed(behind)} {plural(behind, 'has', 'have')} not entered while waiting elsewhere: "
        + end,
        confidence=Confidence.UNSURE if usual is None else Confidence.LIKELY,
        since_s=_since_s(history, scene.ahead),
        victims=tuple(sorted({*graph.victims(scene.members), *scene.members} - set(culprits))),
        evidence={rank: f"{e.signature} at {e.site or '?'}" for rank, e in entries.items()},
        signature=f"mismatch:{scene.process_group}:{entry.signature.op}/nothing",
    )


def _usual_calls(
    history: History, records: Mapping[RankName, RankRecord], scene: _Scene, entry: Entry
) -> int | None:
    """How many calls of this process group one attempt makes, by all finished attempts known."""
    counts: set[int] = set()
    outside = [
        record
        for track in history.present()
        if track.group != scene.group and (record := history.record(track)) is not None
    ]
    for record in (*records.values(), *outside):
        calls: Counter[int] = Counter()
        for known in record.of(scene.process_group):
            if known.attempt is not None:
                calls[known.attempt] += 1
        whole = sorted(calls)[1:-1]  # the first may be cut off by the ring, the last is under way
        counts.update(calls[attempt] for attempt in whole)
    return counts.pop() if len(counts) == 1 and entry.nth is not None else None
