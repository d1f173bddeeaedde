"""Who differs in a collective that all have entered: phase 2 of a mismatch.

Signatures of the same (process group, sequence), walked back to the first divergence. A strict
majority makes the minority the culprits. On a tie the program itself decides, for every group runs
the same: what these ranks called at the same `nth` in earlier attempts, and what the other groups
call there. When both are silent, or contradict each other, nobody is accused and both are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from monitor.detectors.suspicion import Scene, began_s, entries_at
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.detectors.wording import listed, plural
from monitor.flight_recorder import Entry, RankRecord, Signature
from monitor.history import History
from monitor.names import RankName


def differing_call(
    history: History, graph: WaitGraph, scene: Scene, records: Mapping[RankName, RankRecord]
) -> Verdict | None:
    """Who called something else than the program does; None when all called the same."""
    seq = _first_divergence(records, scene)
    if seq is None:
        return None
    entries = entries_at(records, scene.process_group, seq)
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


def _first_divergence(records: Mapping[RankName, RankRecord], scene: Scene) -> int | None:
    """The first of the diverging collectives in a row that ends at the scene's; None: none."""
    first: int | None = None
    for seq in range(scene.seq, 0, -1):
        entries = entries_at(records, scene.process_group, seq)
        if len({entry.signature for entry in entries.values()}) < 2:
            break
        first = seq
    return first


def _expected(
    history: History, records: Mapping[RankName, RankRecord], scene: Scene, entry: Entry
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
    scene: Scene,
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
        since_s=began_s(history, culprits),
        victims=tuple(sorted({*graph.victims(scene.members), *scene.members} - set(culprits))),
        evidence={
            rank: f"{entry.signature} at {entry.site or '?'}" for rank, entry in entries.items()
        },
        signature=_place_signature(scene.process_group, sides),
    )


def _place_signature(process_group: str, sides: Iterable[Signature]) -> str:
    ops = sorted({side.op for side in sides})
    return f"mismatch:{process_group}:{'/'.join(ops)}"
