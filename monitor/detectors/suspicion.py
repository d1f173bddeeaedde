"""Where a mismatch is suspected, by ring heads alone, and whose flight records would settle it.

A collective is suspicious when every member is inside it and none gets out, when a process died in
a group of more than one (gloo kills with SIGABRT on a size mismatch, within a second), or when some
are inside and the absent wait elsewhere, nobody being alone (an extra or a skipped call).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from monitor.detectors.stuck import Stuck
from monitor.detectors.waits import Standing, WaitGraph
from monitor.flight_recorder import Entry, RankRecord
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName
from worker_server.wire import ACROSS

_COHORT_GROUPS = 2
"""Other groups whose records are read to learn what the program does at this place."""


@dataclass(frozen=True, slots=True)
class Scene:
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
    recorded: bool = False
    """Only torch's recorder has it."""


def scenes(history: History, graph: WaitGraph) -> Iterable[Scene]:
    """Suspicious collectives of this tick, those of the living first."""
    yield from _stuck_scenes(history, graph)
    yield from _dead_scenes(history, graph)


def wanted_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose flight records would settle a suspicion of this tick; sorted."""
    wanted: set[RankName] = set()
    stuck = tuple(_stuck_scenes(history, graph))
    for scene in stuck:
        wanted.update(r for r in scene.members if _lacks(history, r, scene))
    involved = {scene.group for scene in stuck}
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


def entries_at(
    records: Mapping[RankName, RankRecord], process_group: str, seq: int
) -> dict[RankName, Entry]:
    """What each rank called at one place, of those whose records hold it."""
    found = {rank: record.at(process_group, seq) for rank, record in records.items()}
    return {rank: entry for rank, entry in found.items() if entry is not None}


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


def _lacks(history: History, rank: RankName, scene: Scene | None = None) -> bool:
    record, age_s = history.record(history.tracks[rank]), history.record_age_s(rank)
    if record is None or age_s is None or age_s > history.config.record_repeat_s:
        return True
    if scene is not None and age_s >= scene.stall_s:
        return True
    if scene is None or scene.recorded or (scene.ahead and rank not in scene.ahead):
        return False
    return record.at(scene.process_group, scene.seq) is None


def _before_death(history: History, track: RankTrack) -> bool:
    """Whether a dead rank's record was read before it died: its last call is not in it."""
    age_s = history.record_age_s(track.rank)
    return track.died_s is not None and age_s is not None and history.now_s - age_s <= track.died_s


def _stuck_scenes(history: History, graph: WaitGraph) -> Iterable[Scene]:
    for stuck in graph.stuck:
        ahead = () if stuck.complete else stuck.joined
        if stuck.stall_s < _patience_s(history, stuck) or (ahead and not _crossed(graph, stuck)):
            continue
        members = {*stuck.joined, *stuck.absent}
        if stuck.complete:  # those that got out of it are members too
            members |= {t.rank for t in history.groups()[stuck.group] if _passed(t, stuck)}
        yield Scene(
            group=stuck.group,
            process_group=stuck.process_group,
            seq=stuck.seq,
            size=stuck.size,
            members=tuple(sorted(members)),
            ahead=ahead,
            stall_s=stuck.stall_s,
            recorded=stuck.recorded,
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


def _dead_scenes(history: History, graph: WaitGraph) -> Iterable[Scene]:
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
                yield Scene(
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
