"""Who is polled: ranks that registered with a lease, and those of a `file_sd` list.

Theory of operation. A rank name is borne by one incarnation at a time. The incarnation that
was registered *first* is the oldest: a new one replaces it at once, and from then on the old
one's renewals are refused, however late they come. A lease that lapses does not drop the rank
at once: the death of a host silences its WorkerServers and their renewals together, and the
detectors must still see the silence. It is dropped after `LAPSE_GRACE_S` more, counted from
the last renewal or the last good answer to a poll, whichever is later. After a cold start with
no store the lingering WorkerServer of a dead rank may come after the living one: then the ages
that both state decide, and only where one states none is the second taken for the newer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from monitor.clock import Clock
from monitor.names import RankName
from monitor.targets.target import (
    Source,
    Standing,
    Target,
    older,
    rank_of,
    target_from_json,
    target_to_json,
)
from worker_server.wire import Identity, Registration, WireError

LAPSE_GRACE_S: Final = 60.0
"""Longer: a dead host is seen for longer; a rank that left without a word lingers as long."""
LEASE_MIN_S: Final = 1.0
LEASE_MAX_S: Final = 3600.0
SUPERSEDED_KEPT: Final = 16
"""Old incarnations remembered for each rank; each costs one short string."""


class TargetKeeper(Protocol):
    """Where targets survive a restart of the monitor."""

    def save_target(self, rank: RankName, body: Mapping[str, Any]) -> None:
        """Write or replace one target."""
        ...

    def drop_target(self, rank: RankName) -> None:
        """Forget one target."""
        ...


class Registry:
    """The targets. Safe to use from any thread."""

    def __init__(self, clock: Clock, keeper: TargetKeeper) -> None:
        self._clock = clock
        self._keeper = keeper
        self._lock = threading.Lock()
        self._targets: dict[RankName, Target] = {}
        self._superseded: dict[RankName, tuple[str, ...]] = {}
        self._left: dict[RankName, str] = {}
        self._file_urls: tuple[str, ...] = ()
        self._strangers: set[str] = set()

    def restore(self, bodies: Sequence[Mapping[str, Any]]) -> int:
        """Take over what an earlier monitor had saved.

        Each has one lease to answer or to renew, without the grace: nobody knows for how long
        the monitor was away. Targets of a file come back with the file.
        """
        with self._lock:
            return self._restore(bodies)

    def adopt(self, bodies: Sequence[Mapping[str, Any]]) -> int:
        """Take over of what another monitor had saved what is not known here."""
        with self._lock:
            return self._restore([one for one in bodies if rank_of(one) not in self._targets])

    def _restore(self, bodies: Sequence[Mapping[str, Any]]) -> int:
        heard_s, restored = self._clock.now_s() - LAPSE_GRACE_S, 0
        for body in bodies:
            try:
                target, superseded = target_from_json(body, heard_s)
            except (WireError, KeyError, TypeError, ValueError):
                continue  # written by another version: the next renewal brings it back
            if target.source is Source.FILE:
                continue
            self._targets[target.rank] = target
            self._superseded[target.rank] = superseded
            restored += 1
        return restored

    def save_all(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Write every target that is not stored like this: this monitor has begun to write."""
        known = {rank_of(one): one for one in stored}
        with self._lock:
            for rank, target in self._targets.items():
                body = target_to_json(target, self._superseded.get(rank, ()))
                if body != known.get(rank):
                    self._keeper.save_target(rank, body)

    def register(self, registration: Registration) -> Standing:
        """Register or renew; SUPERSEDED when a newer incarnation bears the name."""
        identity = registration.identity
        lease_s = min(max(registration.lease_s, LEASE_MIN_S), LEASE_MAX_S)
        now_s = self._clock.now_s()
        born_s = None if registration.age_s is None else now_s - registration.age_s
        target = Target(identity, registration.url, lease_s, Source.LEASE, now_s, born_s)
        with self._lock:
            return self._admit(target)

    def _admit(self, target: Target) -> Standing:
        rank, old = target.rank, self._targets.get(target.rank)
        if old is not None and old.identity.incarnation != target.identity.incarnation:
            if target.identity.incarnation in self._superseded.get(rank, ()):
                return Standing.SUPERSEDED
            elder = target if older(target, old) else old
            elders = (*self._superseded.get(rank, ()), elder.identity.incarnation)
            self._superseded[rank] = elders[-SUPERSEDED_KEPT:]
            if elder is target:
                return Standing.SUPERSEDED
        self._targets[rank] = target
        self._strangers.discard(target.url)
        if self._left.get(rank) == target.identity.incarnation:
            del self._left[rank]
        if old is None or replace(old, heard_s=target.heard_s, born_s=target.born_s) != target:
            self._keeper.save_target(rank, target_to_json(target, self._superseded.get(rank, ())))
        return Standing.CURRENT

    def unregister(self, rank: RankName, incarnation: str) -> bool:
        """Remove a rank, if it is still this incarnation that bears the name."""
        with self._lock:
            target = self._targets.get(rank)
            if target is None or target.identity.incarnation != incarnation:
                return False
            self._left[rank] = incarnation
            self._drop(rank)
            return True

    def _drop(self, rank: RankName) -> None:
        del self._targets[rank]
        self._superseded.pop(rank, None)
        self._keeper.drop_target(rank)

    def heard(self, ranks: Sequence[RankName]) -> None:
        """These ranks answered a poll just now, as the incarnation registered."""
        now_s = self._clock.now_s()
        with self._lock:
            for rank in ranks:
                if (target := self._targets.get(rank)) is not None:
                    self._targets[rank] = replace(target, heard_s=now_s)

    def expire(self) -> tuple[Target, ...]:
        """Drop and return the targets that have been silent for their lease and the grace."""
        now_s = self._clock.now_s()
        with self._lock:
            silent = tuple(
                target
                for target in self._targets.values()
                if target.source is Source.LEASE
                and now_s - target.heard_s > target.lease_s + LAPSE_GRACE_S
            )
            for target in silent:
                self._drop(target.rank)
        return silent

    def targets(self) -> tuple[Target, ...]:
        """Everyone to poll, sorted by rank."""
        with self._lock:
            return tuple(self._targets[rank] for rank in sorted(self._targets))

    def get(self, rank: RankName) -> Target | None:
        """The current target of this name."""
        with self._lock:
            return self._targets.get(rank)

    def standing(self, rank: RankName, incarnation: str) -> Standing:
        """What is known of one incarnation of a rank."""
        with self._lock:
            target = self._targets.get(rank)
            if target is not None and target.identity.incarnation == incarnation:
                return Standing.CURRENT
            if target is not None or incarnation in self._superseded.get(rank, ()):
                return Standing.SUPERSEDED
            if self._left.get(rank) == incarnation:
                return Standing.LEFT
            return Standing.UNKNOWN

    # -- targets of a file ------------------------------------------------------------------

    def follow(self, urls: Sequence[str]) -> None:
        """Poll exactly these URLs as file targets; those no longer listed are dropped."""
        with self._lock:
            self._file_urls = tuple(urls)
            gone = [
                target.rank
                for target in self._targets.values()
                if target.source is Source.FILE and target.url not in self._file_urls
            ]
            for rank in gone:
                self._drop(rank)

    def unidentified(self) -> tuple[str, ...]:
        """URLs of the file of which it is not known, or no longer, which rank answers there."""
        with self._lock:
            known = {target.url for target in self._targets.values()} - self._strangers
            return tuple(url for url in self._file_urls if url not in known)

    def estrange(self, target: Target) -> None:
        """Somebody else answered at a file target's URL: ask again who it is."""
        if target.source is Source.FILE:
            with self._lock:
                self._strangers.add(target.url)

    def identify(self, url: str, identity: Identity) -> None:
        """A file target said who it is."""
        with self._lock:
            if url in self._file_urls:
                self._admit(Target(identity, url, LEASE_MAX_S, Source.FILE, self._clock.now_s()))
