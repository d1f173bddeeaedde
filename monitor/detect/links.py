"""The ranks' odd connections as edges between hosts. Pure.

Theory of operation. A state carries the rank's odd connections (`wire.Connection`). Addresses
become hosts: first by the address at which this monitor reaches a host's WorkerServers, then by
what its ranks say of their own addresses; one that two hosts claim is nobody's, so behind a NAT
that gives several hosts one address nothing is concluded. A rank can say anything of its own
sockets, so one side's word accuses nobody: a link counts as broken where both ends say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final
from urllib.parse import urlsplit

from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import Host, RankName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.wording import seconds
from lightkeeper.worker_server.wire import Connection, Trouble

_BROKEN: Final = frozenset({Trouble.UNACKNOWLEDGED, Trouble.UNANSWERED})
_LOOPBACK: Final = ("127.", "::1")
_Claim = tuple[str, Host]


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection of one rank that is broken or slow."""

    rank: RankName
    host: Host
    peer: Host | None
    """None: the address is no host's of this job."""
    connection: Connection

    @property
    def between(self) -> bool:
        """True if it leads to another host of the job."""
        return self.peer is not None and self.peer != self.host

    def sentence(self) -> str:
        """`0.0 has sent 192 bytes to node-1 (10.0.0.2) and got no acknowledgement for 6 s`."""
        row = self.connection
        whom = f"{self.peer} ({row.address})" if self.peer is not None else row.peer
        if row.use in ("store", "lighthouse"):
            whom = f"the {row.use} at {row.peer}"
        tries = f", {row.retries} retries" if row.retries else ""
        match row.trouble:
            case Trouble.UNACKNOWLEDGED:
                return (
                    f"{self.rank} has sent {row.queued} bytes to {whom} and nobody has "
                    f"acknowledged them for {seconds(row.for_s)}{tries}"
                )
            case Trouble.UNANSWERED:
                return f"{whom} does not answer {self.rank} for {seconds(row.for_s)}{tries}"
            case Trouble.SHUT:
                return f"the dead connection of {self.rank} to {whom} was shut{tries}"
            case Trouble.MISSING:
                return f"{self.rank} has no connection to {whom} for {seconds(row.for_s)}"
            case Trouble.SILENT:
                return f"{self.rank} waits for {whom}, from which nothing came for " + seconds(
                    row.for_s
                )
            case _:
                return f"{self.rank} sends to {whom} at {rate_in_words(row.rate)}"


@dataclass(frozen=True, slots=True)
class Links:
    """The odd connections of one tick."""

    edges: tuple[Edge, ...] = ()
    by_hosts: Mapping[tuple[Host, Host], tuple[Edge, ...]] = field(default_factory=dict)
    """Host and peer -> broken connections between them."""

    def of(self, rank: RankName) -> list[Edge]:
        """A rank's own."""
        return [edge for edge in self.edges if edge.rank == rank]

    def to(self, host: Host, least_s: float) -> list[Edge]:
        """Connections of other hosts to this one, broken for so long."""
        pairs = (edges for (_, peer), edges in self.by_hosts.items() if peer == host)
        return [e for e in chain.from_iterable(pairs) if e.connection.for_s >= least_s]

    def confirmed(self, least_s: float) -> dict[tuple[Host, Host], list[Edge]]:
        """Pairs of hosts, in order, whose link both ends call broken for so long."""
        pairs: dict[tuple[Host, Host], list[Edge]] = {}
        for (host, peer), edges in self.by_hosts.items():
            back = self.by_hosts.get((peer, host), ())
            long = [[e for e in es if e.connection.for_s >= least_s] for es in (edges, back)]
            if host < peer and all(long):
                pairs[host, peer] = [*long[0], *long[1]]
        return pairs


def links_of(tracks: Iterable[RankTrack]) -> Links:
    """What the reports of this tick say, by hosts."""
    tracks = tuple(tracks)
    if not any(track.fresh is not None and track.fresh.connections for track in tracks):
        return Links()
    hosts = _hosts(tracks)
    edges = tuple(
        Edge(track.rank, track.identity.host, hosts.get(row.address), row)
        for track in tracks
        if track.fresh is not None
        for row in track.fresh.connections
        if not row.address.startswith(_LOOPBACK)
    )
    between = grouped(
        ((edge.host, peer), edge)
        for edge in edges
        if edge.connection.trouble in _BROKEN
        if (peer := edge.peer) is not None and peer != edge.host
    )
    return Links(edges, {pair: tuple(broken) for pair, broken in between.items()})


def addresses_of(tracks: Iterable[RankTrack]) -> tuple[str, ...]:
    """Addresses of the hosts of these ranks, also those that two claim, and loopback; sorted."""
    polled, said = _claims(tuple(tracks))
    return tuple(sorted({address for address, _ in (*polled, *said)} | {"127.0.0.1", "::1"}))


def _hosts(tracks: Sequence[RankTrack]) -> dict[str, Host]:
    """Address -> host; one that two hosts claim is neither's."""
    polled, said = _claims(tracks)
    reached = {address for address, _ in polled}
    owners = grouped([*polled, *(claim for claim in said if claim[0] not in reached)])
    return {address: hosts[0] for address, hosts in owners.items() if len(set(hosts)) == 1}


def _claims(tracks: Sequence[RankTrack]) -> tuple[list[_Claim], list[_Claim]]:
    """Where this monitor reaches hosts, and what their ranks say."""
    urls = [("" if t.observation is None else t.observation.url, t.identity.host) for t in tracks]
    polled = [(urlsplit(url).hostname or "", host) for url, host in urls]
    said = [
        (address, track.identity.host)
        for track in tracks
        if track.report is not None
        for address in track.report.addresses
    ]
    return polled, said


def rate_in_words(rate: int) -> str:
    return f"{rate / 1e6:.1f} MB/s" if rate >= 1e5 else f"{rate / 1e3:.1f} kB/s"
