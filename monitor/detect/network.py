"""Links that are broken or slow, by the kernels of their ends. Pure.

The culprit is the host with broken links to several hosts, each confirmed by its other end; if two
hosts only miss each other, it may be either. A host to or from which all slow connections lead is
held back by its own link; if all are slow, nobody is named. Only ranks whose own kernel says so are
named: a rank may call its host by another's name. Hosts that nobody hears any more are reported by
`dead`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.links import Edge, rate_in_words
from lightkeeper.monitor.model.names import Host, RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import groups_of, listed, seconds
from lightkeeper.worker_server.wire import Trouble

PARTED_S: Final = 7.0
"""Longer than a flap of 6 s; TCP sends again after 0.2, 0.6, 1.4, 3 and 6.2 s."""
_SLOW_S: Final = 20.0
_BUSY, _IDLE = 0.6, 0.3
"""Share of the time in which a slow link is busy, and above which others report theirs: where all
send much, all are reported, and nobody is named."""
_SLOWER: Final = 3.0
"""Times slower than its own best rate. A link that was never faster is reported, and accuses
nobody: a program may send more from one host than from others."""
_SHOWN: Final = 4


# -- links that are broken -----------------------------------------------------------------------


def parted(history: History) -> Iterable[Verdict]:
    """Hosts that cannot reach each other, while ranks on both stand still."""
    pairs = {
        pair: edges
        for pair, edges in history.links.confirmed(PARTED_S).items()
        if all(_stands(history, edge.rank) for edge in edges)
    }
    if not pairs:
        return
    count = Counter(chain.from_iterable(pairs))
    edges = sorted(chain.from_iterable(pairs.values()), key=lambda edge: edge.rank)
    host = _in_most(count)
    said = "; ".join(edge.sentence() for edge in edges[:_SHOWN])
    culprits = tuple(sorted({edge.rank for edge in edges if host in (None, edge.host)}))
    tie = groups_of(culprits) if host is None and len(pairs) == 1 else ()
    reason = _parted_in_words(sorted(count), host, pairs=len(pairs))
    stands = (t.rank for t in history.present() if _stands(history, t.rank))
    agreed_s = (min(edge.connection.for_s for edge in both) for both in pairs.values())
    links = ", ".join(map(" - ".join, sorted(pairs)[:_SHOWN]))
    yield Verdict(
        kind=Kind.DEADLOCK,
        culprits=culprits,
        reason=f"{reason}: {said}",
        brief=reason,
        confidence=Confidence.UNSURE if host is None else Confidence.LIKELY,
        since_s=history.now_s - max(agreed_s),
        victims=tuple(rank for rank in stands if host is None or rank not in culprits),
        evidence={"source": "the kernels of both ends", "links": links},
        signature=f"link:{'/'.join(sorted(count))}",
        tie=tie if len(tie) > 1 else (),
    )


def _in_most(count: Counter[Host]) -> Host | None:
    """The host of more broken links than any other; None: no host stands out."""
    (host, most), *others = count.most_common()
    return host if most > 1 and (not others or others[0][1] < most) else None


def _parted_in_words(hosts: list[Host], host: Host | None, *, pairs: int) -> str:
    if host is not None:
        missed = listed([other for other in hosts if other != host])
        return f"{host} cannot reach {missed}, which reach each other: its link is broken"
    if pairs > 1:
        return f"links between {listed(hosts)} are broken"
    return f"{listed(hosts)} cannot reach each other, and everybody else reaches both"


def _stands(history: History, rank: RankName) -> bool:
    track = history.tracks.get(rank)
    return track is not None and track.fresh is not None and track.stall_s >= history.still_after_s


# -- links that are slow -------------------------------------------------------------------------


def slow_link(history: History) -> Iterable[Verdict]:
    """The host to or from which all slow connections of the job lead.

    Links that are slow for all, as in a job that sends much, name nobody.
    """
    own = _slow_of_one_host(history)
    if not own or own[0].connection.busy < _BUSY:
        return
    edge, row = own[0], own[0].connection
    host, culprits = edge.host, tuple(sorted({edge.rank for edge in own}))
    slower = row.best > _SLOWER * row.rate
    was = f" ({rate_in_words(row.best)} before)" if slower else ""
    others = (track.rank for track in history.present())
    yield Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        reason=f"the link of {host} is slow: {edge.rank} sends to {edge.peer} at "
        f"{rate_in_words(row.rate)}{was} and was busy with it for {row.busy:.0%} of the last "
        f"{seconds(row.for_s)}; the others' connections are idle for most of it",
        brief=f"the link of {host} is slow: {rate_in_words(row.rate)}{was}",
        confidence=Confidence.LIKELY if slower else Confidence.UNSURE,
        lost_s=row.for_s * (row.busy - _IDLE) if slower else 0.0,
        since_s=history.now_s - row.for_s,
        victims=tuple(rank for rank in others if rank not in culprits),
        evidence={"source": "the kernels' send queues"}
        | {edge.rank: edge.sentence() for edge in own[:_SHOWN]},
        signature=f"slow_link:{host}",
    )


def _slow_of_one_host(history: History) -> list[Edge]:
    """Slow connections of the one host that takes part in all of them, the busiest first; empty:
    there are none, or no such host among three.
    """
    slow = [e for e in history.links.edges if e.connection.trouble is Trouble.SLOW and e.between]
    hosts = {track.identity.host for track in history.present()}
    common = {host for host in hosts if all(host in (e.host, e.peer) for e in slow)}
    own = [e for e in slow if e.host in common and e.connection.for_s >= _SLOW_S]
    alone = len(hosts) > 2 and len({edge.host for edge in own}) == 1
    return sorted(own, key=lambda edge: -edge.connection.busy) if alone else []
