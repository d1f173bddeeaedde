"""An extra or a skipped call: some are inside a collective that the others have not reached.

All wait for each other. Whoever is ahead made an extra call unless the program always makes it
there; then the others skipped theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from monitor.detectors.suspicion import Scene, began_s, entries_at
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.detectors.wording import listed, plural
from monitor.flight_recorder import Entry, RankRecord
from monitor.history import History
from monitor.names import RankName


def uneven_call(
    history: History, graph: WaitGraph, scene: Scene, records: Mapping[RankName, RankRecord]
) -> Verdict | None:
    """Who made a call too many, or left one out; None without a record of it."""
    entries = entries_at(
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
        since_s=began_s(history, scene.ahead),
        victims=tuple(sorted({*graph.victims(scene.members), *scene.members} - set(culprits))),
        evidence={rank: f"{e.signature} at {e.site or '?'}" for rank, e in entries.items()},
        signature=f"mismatch:{scene.process_group}:{entry.signature.op}/nothing",
    )


def _usual_calls(
    history: History, records: Mapping[RankName, RankRecord], scene: Scene, entry: Entry
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
