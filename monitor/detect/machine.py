"""What machines testify, joined to what the graph says. Pure.

Theory of operation. A testimony (`wire.Testimony`) comes from the witnesses beside the ranks of a
host, which speak of that host alone, or from the cluster (`Snapshot.cluster`). It never accuses by
itself: it is joined to a verdict about a rank of its host. What is `broken` there about when the
fault began makes a likely verdict certain, and of several candidates it singles out the one whose
host testifies: likely then. The host is blamed, whatever the kind of fault (`Verdict.blamed`). What
is `slow` names a cause, if the hosts of most other ranks do not say the same. Where the suspects'
hosts are `leaving`, somebody knows already: nobody is accused. A rank says so of its own host for
`_NOTICE_S` at most: one that lies could hold the job up forever. What is `ended` says how a
process ended, and nothing against its host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.model.names import Host, RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import rfc3339
from lightkeeper.worker_server.wire import Testimony, Weight, printable_line

_BEFORE_S: Final = 300.0
_AFTER_S: Final = 120.0
"""A host may report what belongs to a fault this long before or after it began: the kernel reports
a hung task after 120 s and more, InfiniBand gives up after 30 s (facts/hosts.md, 10)."""
_NOW_S: Final = 20.0
"""What slows has been so within this time."""
_NOTICE_S: Final = 180.0
"""A cloud gives 30 s (GCP, Azure) or 120 s (AWS) between its notice and the end of the host."""
_MOSTLY: Final = 0.5
_OF_HOSTS: Final = frozenset({Kind.NOT_ENTERED, Kind.DEAD, Kind.STRAGGLER, Kind.STATE_CORRUPT})
"""Kinds of faults that a broken host may cause. What a program calls is not among them."""

Heard = tuple[Host, Testimony]


def join_machines(history: History, verdict: Verdict) -> Verdict:
    """The verdict with what the machines of its suspects say; unchanged if that is nothing."""
    if not verdict.suspects or verdict.kind not in (*_OF_HOSTS, Kind.DEADLOCK):
        return verdict
    heard = {rank: _heard(history, rank) for rank in verdict.suspects}
    if not any(heard.values()):
        return verdict
    leaving = {rank: _leaving(history, rank, rows) for rank, rows in heard.items()}
    if all(leaving.values()):
        return _spared(verdict, next(iter(leaving.values()))[0])
    broken = {r: _about(_of(rows, Weight.BROKEN), verdict.since_s, history.now_s)
              for r, rows in heard.items()}  # fmt: skip
    if verdict.kind in _OF_HOSTS and any(broken.values()):
        said = {rank: rows for rank, rows in broken.items() if rows}
        return _with(_blamed(verdict, said), _unique(chain(*said.values())), history.now_s)
    slow = [row for rank in verdict.culprits for row in _slow(history, rank, heard[rank])]
    return _with(verdict, _unique(slow), history.now_s)


def _heard(history: History, rank: RankName) -> tuple[Heard, ...]:
    """What is known of a rank's host and of the rank, with ages of now."""
    track = history.tracks.get(rank)
    if track is None:
        return ()
    host = track.identity.host
    own = () if track.report is None else track.report.machine
    late_s = max(0.0, history.now_s - (track.report_s or history.now_s))
    return tuple((host, row.later(late_s)) for row in own) + tuple(
        (host, row) for row in history.cluster.get(host, ())
    )


def _leaving(history: History, rank: RankName, rows: Iterable[Heard]) -> tuple[Heard, ...]:
    """Notices that spare it: the cluster's, and its own for a while."""
    said = _of(rows, Weight.LEAVING)
    if not said:
        return ()
    track = history.tracks[rank]
    if track.heeded_s is None:
        track.heeded_s = history.now_s
    if history.now_s - track.heeded_s <= _NOTICE_S:
        return said
    return tuple(heard for heard in said if heard[1] in history.cluster.get(heard[0], ()))


def _of(rows: Iterable[Heard], weight: Weight) -> tuple[Heard, ...]:
    return tuple(row for row in rows if row[1].weight is weight)


def _about(rows: Iterable[Heard], since_s: float, now_s: float) -> tuple[Heard, ...]:
    """Those that were so about when the fault began."""
    return tuple(
        (host, row) for host, row in rows
        if now_s - row.for_s <= since_s + _AFTER_S and now_s - row.age_s >= since_s - _BEFORE_S
    )  # fmt: skip


def _spared(verdict: Verdict, notice: Heard) -> Verdict:
    host, row = notice
    text, witness = printable_line(row.text), printable_line(row.witness)
    said = f"{host} is leaving the job: {text} ({witness}), so nobody is accused"
    return replace(
        verdict,
        confidence=Confidence.UNSURE,
        reason=f"{verdict.reason}; {said}",
        spare=verdict.spare or said,
        evidence={**verdict.evidence, "machine": _evidence([notice])},
    )


def _blamed(verdict: Verdict, broken: dict[RankName, tuple[Heard, ...]]) -> Verdict:
    """The host of the culprits, or of the one candidate whose host testifies, is broken."""
    blamed = tuple({host for rows in broken.values() for host, _ in rows})
    unsure = verdict.confidence is Confidence.UNSURE
    if len(blamed) > 1 or (unsure and (verdict.tie or verdict.spare)):
        return verdict  # several are broken: which one did it is not told
    if unsure:
        return replace(
            verdict, culprits=tuple(sorted(broken)), candidates=(), groups=(),
            confidence=Confidence.LIKELY, blamed=blamed,
        )  # fmt: skip
    if broken.keys() != {*verdict.culprits}:
        return verdict
    return replace(verdict, confidence=Confidence.CERTAIN, blamed=blamed)


def _slow(history: History, rank: RankName, rows: Collection[Heard]) -> Sequence[Heard]:
    """What explains that it is slow or waits: true now, and not of most others."""
    own = history.tracks[rank].identity.host
    others = [track for track in history.present() if track.identity.host != own]
    return [
        (host, row) for host, row in _of(rows, Weight.SLOW)
        if row.age_s <= _NOW_S
        and sum(_says(history, track.rank, row.code) for track in others) <= _MOSTLY * len(others)
    ]  # fmt: skip


def _says(history: History, rank: RankName, code: str) -> bool:
    return any(row.code == code and row.age_s <= _NOW_S for _, row in _heard(history, rank))


def _unique(rows: Iterable[Heard]) -> tuple[Heard, ...]:
    """Ranks of one host say the same of it."""
    return tuple({(host, row.code, row.device): (host, row) for host, row in rows}.values())


def _with(verdict: Verdict, rows: Sequence[Heard], now_s: float) -> Verdict:
    if not rows:
        return verdict
    said = _evidence(rows, now_s)
    return replace(
        verdict,
        reason=f"{verdict.reason}; {said}",
        evidence={**verdict.evidence, "machine": _evidence(rows)},
    )


def _evidence(rows: Iterable[Heard], now_s: float | None = None) -> str:
    """`node-1: GPU 3: Xid 79, fallen off the bus (kernel log, 14:05:11 UTC)`; without `now_s` also
    without times: evidence stays what it is from tick to tick.
    """
    said = []
    for host, row in rows:
        at = ""
        if now_s is not None and row.weight is Weight.BROKEN:
            at = f", {rfc3339(now_s - row.for_s)[11:19]} UTC"
        said.append(f"{host}: {printable_line(row.text)} ({printable_line(row.witness)}{at})")
    return "; ".join(said)
