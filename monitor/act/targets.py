"""Who is polled: ranks that registered with a lease, and those of a `file_sd` list.

Theory of operation. A rank name is borne by one incarnation at a time. The incarnation that
was registered *first* is the oldest: a new one replaces it at once, and from then on the old
one's renewals are refused, however late they come. A lease that lapses does not drop the rank
at once: the death of a host silences its WorkerServers and their renewals together, and the
detectors must still see the silence. It is dropped after `LAPSE_GRACE_S` more, counted from
the last renewal or the last good answer to a poll, whichever is later. After a cold start with
no store the lingering WorkerServer of a dead rank may come after the living one: then the ages
that both state decide, and only where one states none is the second taken for the newer.

A group's name is its TorchFT Manager's, so a process changes its rank's name once in its life; it
is a target under one name. What a Manager says is the rank's own word: it does not get the name of
a group that another launcher's name stands for, nor one that another launcher's group already bears
and lives; and a launcher that itself uses a name takes it back. While a rank answers as itself,
nobody on another host takes its name: only once it is dead or silent, or from its own host.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.clock import Clock
from monitor.model.names import GroupName, RankName
from monitor.store.store import Store
from worker_server.wire import Identity, Registration, WireError, parse_identity, routed

# -- target ------------------------------------------------------------------------------------

_AGE_SLACK_S: Final = 1.0
"""May be lost between the rank's stating its age and the registry's hearing of it."""


class Source(StrEnum):
    LEASE = "lease"
    FILE = "file"


class Registered(StrEnum):
    """What the registry knows of one incarnation of a rank."""

    CURRENT = "current"
    SUPERSEDED = "superseded"  # a newer incarnation bears the name
    LEFT = "left"  # it unregistered: its WorkerServer saw it dead and its linger ended
    UNKNOWN = "unknown"
    REFUSED = "refused"  # its Manager's name for the group is another launcher's group
    TAKEN = "taken"  # who bears the name answers as itself, on another host
    FULL = "full"  # as many ranks are registered as there may be
    HASTY = "hasty"  # its address brings more than one may


@dataclass(frozen=True, slots=True)
class Target:
    identity: Identity
    url: str
    lease_s: float
    source: Source
    heard_s: float
    """Unix time of the last renewal."""
    born_s: float | None = None
    """Unix time at which the rank attached, by its own account; None when it does not say."""
    dead: bool = False
    """Its WorkerServer said so."""

    @property
    def rank(self) -> RankName:
        return self.identity.rank

    @property
    def launched(self) -> GroupName:
        """Its group as its launcher calls it."""
        return self.identity.launched_as or self.identity.group

    @property
    def address(self) -> str | None:
        return urlsplit(self.url).hostname

    @property
    def process(self) -> tuple[str, int, GroupName]:
        """Which process it is, whatever its group is called."""
        return self.identity.incarnation, self.identity.group_rank, self.launched


def older(target: Target, than: Target) -> bool:
    if target.born_s is None or than.born_s is None:
        return False
    return target.born_s < than.born_s - _AGE_SLACK_S


def rank_of(body: Mapping[str, Any]) -> RankName | None:
    """Whose target a stored one is; None: written by another version."""
    try:
        return parse_identity(body["identity"]).rank
    except (WireError, KeyError, TypeError, ValueError):
        return None


def target_to_json(target: Target, superseded: Sequence[str]) -> dict[str, Any]:
    """As the store has it, with the incarnations that bore the name before."""
    body = asdict(target)
    del body["heard_s"], body["dead"]
    return {**body, "source": str(target.source), "superseded": list(superseded)}


def target_from_json(body: Mapping[str, Any], heard_s: float) -> tuple[Target, tuple[str, ...]]:
    """A stored target, and the incarnations that bore the name before.

    Raises:
        WireError, KeyError, TypeError, ValueError: written by another version.
    """
    target = Target(
        identity=parse_identity(body["identity"]),
        url=str(body["url"]),
        lease_s=float(body["lease_s"]),
        source=Source(body["source"]),
        heard_s=heard_s,
        born_s=None if body.get("born_s") is None else float(body["born_s"]),
    )
    return target, tuple(str(item) for item in body["superseded"])


log = logging.getLogger(__name__)

# -- registry ----------------------------------------------------------------------------------

LAPSE_GRACE_S: Final = 60.0
"""Longer: a dead host is seen for longer; a rank that left without a word lingers as long."""
RENEWALS_A_SECOND: Final = 200
RENEW_LEAST_S: Final = 5.0
RENEW_MOST_S: Final = 60.0
LEASE_MIN_S: Final = 1.0
LEASE_MAX_S: Final = 3600.0
UNNAMED: Final = GroupName("job")
"""What a WorkerServer calls a group that no launcher names."""
ANSWERS_S: Final = 10.0
"""Answered this recently: it is there."""
STRANGE_S: Final = 60.0
"""A rank that registers without the right token tries again within 15 s."""
STRANGE_MOST: Final = 1_000
RANKS_MOST: Final = 262_144
"""More is no fleet but a client filling the memory. One address brings half at most."""
NEW_A_MINUTE: Final = 4096
"""Names of one address: of 64 ranks a host, as many as its answer holds (`poller.HOST_MAX_BYTES`),
two each, the launcher's and the Manager's, and of 32 hosts behind one address translation. Fewer
hold up a fleet behind a proxy (10,000 ranks now take 3 minutes); more let one client fill the
table before anybody looks."""
SUPERSEDED_KEPT: Final = 16
"""Old incarnations remembered for each rank; each costs one short string."""


def _network(address: str) -> str:
    """Whom a client counts as: one host can have every address of its IPv6 /64, and of 127/8."""
    try:
        ip = routed(address)
    except ValueError:
        return address
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.version == 4 else str(ip_network((int(ip), 64), strict=False))


class Registry:
    """The targets. Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self._targets: dict[RankName, Target] = {}
        self._groups: defaultdict[GroupName, set[RankName]] = defaultdict(set)
        self._renamed: defaultdict[GroupName, set[RankName]] = defaultdict(set)
        """By their launcher's name, the ranks that have another."""
        self._processes: dict[tuple[str, int, GroupName], RankName] = {}
        self._superseded: dict[RankName, tuple[str, ...]] = {}
        """By incarnation."""
        self._left: dict[RankName, str] = {}
        self._answered: dict[RankName, float] = {}
        """Unix time of the last good answer to a poll."""
        self._file_urls: dict[str, None] = {}
        self._strangers: set[str] = set()
        self._bringers: dict[RankName, str] = {}
        """Whence who registered since the start; an address counts with its IPv6 network."""
        self._brought: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        """By address, names of this minute."""
        self._minute = 0
        self.refused: Counter[str] = Counter()
        """Registrations, by why; ever more."""
        self._strange: dict[str, float] = {}
        """By address: when somebody without the right token wanted to register there."""

    def restore(self, bodies: Sequence[Mapping[str, Any]]) -> int:
        """Take over of what an earlier or another monitor had saved what is not known here.

        Each has one lease to answer or to renew, without the grace: nobody knows for how long
        the monitor was away. Targets of a file come back with the file.
        """
        heard_s, restored = self._clock.now_s() - LAPSE_GRACE_S, 0
        for body in bodies:
            try:
                target, superseded = target_from_json(body, heard_s)
            except (WireError, KeyError, TypeError, ValueError):
                continue  # written by another version: its next renewal restores it
            with self._lock:
                if target.source is Source.LEASE and target.rank not in self._targets:
                    self._put(target)
                    self._superseded[target.rank] = superseded
                    restored += 1
        return restored

    def save_all(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Write every target that is not stored like this: this monitor has begun to write."""
        saved = {rank_of(body): body for body in stored}
        with self._lock:
            for rank, target in self._targets.items():
                body = target_to_json(target, self._superseded.get(rank, ()))
                if body != saved.get(rank):
                    self._store.save_target(rank, body)

    def register(self, registration: Registration, address: str = "") -> Registered:
        """Register or renew; anything but CURRENT says why it is not. `address`: whose client."""
        identity = registration.identity
        lease_s = min(max(registration.lease_s, LEASE_MIN_S), LEASE_MAX_S)
        now_s = self._clock.now_s()
        born_s = None if registration.age_s is None else now_s - registration.age_s
        target = Target(identity, registration.url, lease_s, Source.LEASE, now_s, born_s)
        with self._lock:
            standing = self._admit(target, _network(address))
            if standing is not Registered.CURRENT:
                self.refused[standing] += 1
            return standing

    def refuse(self, address: str) -> None:
        """Record a registration without the right token."""
        with self._lock:
            first = not self.refused["token"]
            self.refused["token"] += 1
            self._strange.pop(address, None)
            self._strange[address] = self._clock.now_s()
            if len(self._strange) > STRANGE_MOST:
                del self._strange[next(iter(self._strange))]
        if first:
            log.warning("a registration from %s is refused: wrong or missing token", address)

    def troubles(self) -> Iterator[str]:
        since_s = self._clock.now_s() - STRANGE_S
        with self._lock:
            lately = [address for address, at_s in self._strange.items() if at_s >= since_s]
        if lately:
            more = f" and {len(lately) - 3:,} more" if len(lately) > 3 else ""
            yield (
                f"ranks that are not shown want to register from {', '.join(lately[-3:])}{more}: "
                "their token is wrong or missing (LIGHTKEEPER_TOKEN_FILE, where they are started)"
            )

    @property
    def renew_s(self) -> float | None:
        """How long ranks may take to renew, where there are many: polls keep a lease as well.

        None: as they like.
        """
        wanted_s = len(self._targets) / RENEWALS_A_SECOND
        return min(RENEW_MOST_S, wanted_s) if wanted_s > RENEW_LEAST_S else None

    def _admit(self, target: Target, bringer: str | None = None) -> Registered:
        rank, old = target.rank, self._targets.get(target.rank)
        if target.identity.incarnation in self._superseded.get(rank, ()):
            return Registered.SUPERSEDED
        fresh = old is None or old.identity.incarnation != target.identity.incarnation
        if fresh and (objection := self._objection(target, old, bringer)) is not None:
            return objection
        if old is not None and fresh:
            elder = target if older(target, old) else old
            elders = (*self._superseded.get(rank, ()), elder.identity.incarnation)
            self._superseded[rank] = elders[-SUPERSEDED_KEPT:]
            if elder is target:
                return Registered.SUPERSEDED
        if fresh:
            self._take_over(target)
        elif old is not None:
            target = replace(target, dead=old.dead)
        self._put(target)
        if old is None and bringer is not None:
            self._bringers[rank] = bringer
            self._brought[bringer] += 1
            self._new[bringer] += 1
        self._strangers.discard(target.url)
        if self._left.get(rank) == target.identity.incarnation:
            del self._left[rank]
        body = target_to_json(target, self._superseded.get(rank, ()))
        if old is None or replace(target, heard_s=old.heard_s, born_s=old.born_s) != old:
            self._store.save_target(rank, body)
        return Registered.CURRENT

    def _objection(
        self, target: Target, old: Target | None, bringer: str | None
    ) -> Registered | None:
        """Why an unknown one is refused."""
        if old is None and len(self._targets) >= RANKS_MOST:
            return Registered.FULL
        if old is None and bringer is not None and self._is_hasty(bringer):
            return Registered.HASTY
        if self._is_anothers(target):
            return Registered.REFUSED
        taken = old is not None and target.address != old.address and self._is_there(old)
        return Registered.TAKEN if taken else None

    def _is_hasty(self, bringer: str) -> bool:
        minute = int(self._clock.now_s() // 60)
        if minute != self._minute:
            self._minute, self._new = minute, Counter()
        return self._new[bringer] >= NEW_A_MINUTE or self._brought[bringer] >= RANKS_MOST // 2

    def _is_there(self, target: Target) -> bool:
        return not target.dead and self._clock.now_s() - self._heard_s(target) <= ANSWERS_S

    def _is_anothers(self, target: Target) -> bool:
        """Whether its Manager's name for the group is that of a living group of another launcher's.

        Between two that are renamed alike, who came first has the name.
        """
        if target.identity.launched_as is None:
            return False
        now_s = self._clock.now_s()
        return any(
            other.launched != target.launched
            and not other.dead
            and now_s - self._heard_s(other) <= other.lease_s
            for other in map(self._targets.__getitem__, self._groups.get(target.identity.group, ()))
        )

    def _take_over(self, target: Target) -> None:
        """A new name: its process has no other; a mere claimant yields."""
        former = self._processes.get(target.process)
        if former is not None and former != target.rank:
            elders = self._superseded.get(former, ())
            self._drop(former)
            self._superseded[former] = elders  # superseded under the former name: still so
        if target.identity.launched_as is None:
            for rank in tuple(self._groups.get(target.identity.group, ())):
                if self._targets[rank].identity.launched_as is not None:
                    self._drop(rank)  # comes back under its launcher's name

    def _put(self, target: Target) -> None:
        rank, identity = target.rank, target.identity
        if (old := self._targets.get(rank)) is not None:
            self._forget(old)
        self._targets[rank] = target
        self._groups[identity.group].add(rank)
        self._processes[target.process] = rank
        if identity.launched_as is not None:
            self._renamed[identity.launched_as].add(rank)

    def _forget(self, target: Target) -> None:
        self._groups[target.identity.group].discard(target.rank)
        self._processes.pop(target.process, None)
        if target.identity.launched_as is not None:
            self._renamed[target.identity.launched_as].discard(target.rank)

    def known_as(self, identity: Identity) -> GroupName | None:
        """What the Managers of this launcher's group called it; None: nothing, or not one name."""
        with self._lock:
            if identity.launched_as is not None or identity.group == UNNAMED:
                return None
            names = {
                self._targets[rank].identity.group for rank in self._renamed.get(identity.group, ())
            }
        return names.pop() if len(names) == 1 else None

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
        self._forget(self._targets.pop(rank))
        self._superseded.pop(rank, None)
        self._answered.pop(rank, None)
        if (bringer := self._bringers.pop(rank, None)) is not None:
            self._brought[bringer] -= 1
            if not self._brought[bringer]:
                del self._brought[bringer]
        self._store.drop_target(rank)

    def heard(self, ranks: Mapping[RankName, bool]) -> None:
        """These ranks answered a poll just now, as the incarnation registered: alive or dead."""
        now_s = self._clock.now_s()
        with self._lock:
            for rank, alive in ranks.items():
                target = self._targets.get(rank)
                if target is not None and target.dead is alive:
                    self._targets[rank] = replace(target, dead=not alive)
            self._answered.update(dict.fromkeys(ranks.keys() & self._targets.keys(), now_s))

    def _heard_s(self, target: Target) -> float:
        """When it last renewed its lease or answered."""
        return max(target.heard_s, self._answered.get(target.rank, target.heard_s))

    def expire(self) -> tuple[Target, ...]:
        """Drop and return the targets that have been silent for their lease and the grace."""
        now_s = self._clock.now_s()
        with self._lock:
            silent = tuple(
                target
                for target in self._targets.values()
                if target.source is Source.LEASE
                and now_s - self._heard_s(target) > target.lease_s + LAPSE_GRACE_S
            )
            for target in silent:
                self._drop(target.rank)
        return silent

    def targets(self) -> tuple[Target, ...]:
        """Everyone to poll, sorted by rank."""
        with self._lock:
            return tuple(self._targets[rank] for rank in sorted(self._targets))

    def get(self, rank: RankName) -> Target | None:
        with self._lock:
            return self._targets.get(rank)

    def standing(self, rank: RankName, incarnation: str) -> Registered:
        with self._lock:
            target = self._targets.get(rank)
            if target is not None and target.identity.incarnation == incarnation:
                return Registered.CURRENT
            if target is not None or incarnation in self._superseded.get(rank, ()):
                return Registered.SUPERSEDED
            if self._left.get(rank) == incarnation:
                return Registered.LEFT
            return Registered.UNKNOWN

    # -- targets of a file ------------------------------------------------------------------

    def follow(self, urls: Sequence[str]) -> None:
        """Poll exactly these URLs as file targets; those no longer listed are dropped."""
        with self._lock:
            self._file_urls = dict.fromkeys(urls)
            unlisted = [
                target.rank
                for target in self._targets.values()
                if target.source is Source.FILE and target.url not in self._file_urls
            ]
            for rank in unlisted:
                self._drop(rank)

    def unidentified(self) -> tuple[str, ...]:
        """URLs of the file of which it is not known, or no longer, which rank answers there."""
        with self._lock:
            identified = {target.url for target in self._targets.values()} - self._strangers
            return tuple(url for url in self._file_urls if url not in identified)

    def estrange(self, target: Target) -> None:
        """Another rank answered at a file target's URL: identify it again."""
        if target.source is Source.FILE:
            with self._lock:
                self._strangers.add(target.url)

    def identify(self, url: str, identity: Identity) -> None:
        """A file target said who it is."""
        with self._lock:
            if url in self._file_urls:
                self._admit(Target(identity, url, LEASE_MAX_S, Source.FILE, self._clock.now_s()))


# -- file sd -----------------------------------------------------------------------------------


class TargetsError(Exception):
    """A `file_sd` list that cannot be read; the message is one line for a person."""


class TargetsFile:
    """A Prometheus `file_sd` JSON list, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None

    def changed(self) -> tuple[str, ...] | None:
        """The URLs, when the file is new or has changed; None when it has not.

        Raises:
            TargetsError: it cannot be read or is not a `file_sd` list.
        """
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return None
            urls = parse_file_sd(self._path.read_text(encoding="utf-8"))
        except OSError as exc:
            raise TargetsError(f"cannot read targets file {self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise TargetsError(f"targets file {self._path}: {exc}") from exc
        self._stamp = stamp  # a list that cannot be read is tried again, and said again
        return urls


def parse_file_sd(text: str) -> tuple[str, ...]:
    """URLs of a Prometheus `file_sd` list: `[{"targets": ["host:port"], "labels": {...}}]`.

    Raises:
        ValueError: not such a list.
    """
    try:
        entries = json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(entries, list):
        raise ValueError('expected a list of {"targets": ["host:port", ...]}')  # noqa: TRY004
    urls: dict[str, None] = {}
    for entry in entries:
        addresses = entry.get("targets") if isinstance(entry, dict) else None
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise ValueError('an entry has no "targets": ["host:port", ...]')
        for address in addresses:
            url = address if address.startswith(("http://", "https://")) else f"http://{address}"
            urls[url.rstrip("/")] = None
    return tuple(urls)
