"""Who is polled: the ranks that registered, each with a lease.

Theory of operation. A rank name belongs to one incarnation at a time. The incarnation that
registered *first* is the oldest: a new one replaces it at once, and from then on the old one's
renewals are refused, however late they come. A lapsed lease does not drop the rank at once: the
death of a host silences its WorkerServers and their renewals together, and the detectors must
still see the silence. The rank is dropped when the lease and `LAPSE_GRACE_S` have passed since the
last renewal or the last good answer to a poll, whichever is later. After a cold start without a
store, the lingering WorkerServer of a dead rank may register after the living one. Then the ages
that both state decide; only if one states none does the second count as the newer.

A group's name comes from its TorchFT Manager, so a process changes its rank's name once in its
life; it is a target under one name at a time. The Manager's name is only the rank's own claim. It
is refused while a living group of another launcher has that name, and a launcher that itself uses
the name takes it back. While a rank answers as itself, nobody on another host gets its name: only
once the rank is dead or silent, or from its own host.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_network
from typing import Any, Final

from msgspec import structs

from lightkeeper.monitor.act.launches import (
    Target,
    older,
    over_before,
    same_job,
    same_launch,
    same_world,
)
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.names import GroupName, RankName, RunId
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.store.store import Store
from lightkeeper.worker_server.wire import (
    FINISHED_PHASE,
    UNNAMED,
    Claim,
    Identity,
    Registration,
    StateReport,
    digest,
    routed,
)

# -- target ------------------------------------------------------------------------------------


class Registered(StrEnum):
    """What the registry knows of one incarnation of a rank."""

    CURRENT = "current"
    SUPERSEDED = "superseded"  # a newer incarnation has the name
    LEFT = "left"  # it unregistered: its WorkerServer saw it dead and its linger ended
    UNKNOWN = "unknown"
    REFUSED = "refused"  # another launcher's group has the name that its Manager gives the group
    WAIT = "wait"  # who has the name was alive when last asked: it is asked again
    TAKEN = "taken"  # who has the name, or the group, still lives
    OTHER_JOB = "other job"  # a rank of another job lives
    OVER = "over"  # dead, and nobody of its run lives
    FULL = "full"  # no more ranks may be registered
    HASTY = "hasty"  # its address registers more ranks than one address may


def target_to_json(target: Target, superseded: Sequence[str]) -> dict[str, Any]:
    """A target for the store, with the incarnations that had the name before."""
    body = to_plain(target)
    del body["heard_s"], body["died_s"]
    return {**body, "superseded": list(superseded)}


def target_from_json(body: Mapping[str, Any], heard_s: float) -> tuple[Target, tuple[str, ...]]:
    """A stored target, and the incarnations that had the name before.

    Raises:
        KeyError, TypeError, ValueError: written by another version.
    """
    target = from_plain(Target, {**body, "heard_s": heard_s})
    return target, tuple(map(str, body["superseded"]))


log = logging.getLogger(__name__)

# -- registry ----------------------------------------------------------------------------------

LAPSE_GRACE_S: Final = 60.0
"""Longer: a dead host is seen for longer, but so is a rank that left without unregistering."""
RENEWALS_A_SECOND: Final = 200
RENEW_LEAST_S: Final = 5.0
RENEW_MOST_S: Final = 60.0
LEASE_MIN_S: Final = 1.0
LEASE_MAX_S: Final = 3600.0
ANSWERS_S: Final = 10.0
"""A rank that answered within this time is there."""
STRANGE_S: Final = 60.0
"""How long a wrong token is shown: a rank with a wrong token tries again within 15 s."""
STRANGE_MOST: Final = 1_000
RANKS_MOST: Final = 262_144
"""More is not a fleet but a client filling the memory. One address may register half at most."""
NEW_A_MINUTE: Final = 4096
"""New names from one address: 32 hosts behind one address translation, 64 ranks each (as many as a
host's answer holds, `poller.HOST_MAX_BYTES`), two names each, the launcher's and the Manager's. A
lower limit delays a fleet behind a proxy (10,000 ranks now take 3 minutes); a higher one lets one
client fill the table before anybody looks."""
CONTEST_S: Final = 6.0
"""A name's holder is asked at each tick: within this time it is known whether it still lives."""
STANDS_S: Final = 30.0
OF_ITS_OWN: Final = (
    "stop one of them, or give this one a monitor of its own: `lightkeeper monitor --bind "
    "127.0.0.1:8471 --store other.db`, and `lightkeeper run --monitor http://127.0.0.1:8471 -- ...`"
)
ALOUD: Final = {
    Registered.TAKEN: f"another run of that name lives; {OF_ITS_OWN}",
    Registered.OTHER_JOB: f"the monitor watches another job, which lives; {OF_ITS_OWN}",
}
"""Why a living rank is not watched, and what to do."""
PAST_KEPT: Final = 65_536
"""Incarnations of older launches that are remembered: all of a large fleet, 8 MB."""
SUPERSEDED_KEPT: Final = 16
"""Old incarnations remembered for each rank; each costs one short string."""


def _network(address: str) -> str:
    """What counts as one client: a host can use all addresses of its IPv6 /64, and of 127/8."""
    try:
        ip = routed(address)
    except ValueError:
        return address
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.version == 4 else str(ip_network((int(ip), 64), strict=False))


def _renewed(target: Target, old: Target) -> Target:
    first, died_s = old.bringer or target.bringer, target.died_s or old.died_s
    return replace(target, died_s=died_s, bringer=first, trained_as=old.trained_as)


def _is(target: Target, identity: Identity) -> bool:
    return target.identity.incarnation == identity.incarnation


class Registry:
    """The targets. Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self._targets: dict[RankName, Target] = {}
        self._groups: defaultdict[GroupName, set[RankName]] = defaultdict(set)
        self._renamed: defaultdict[GroupName, set[RankName]] = defaultdict(set)
        """By the launcher's name for a group: its ranks that have another."""
        self._claimed: defaultdict[GroupName, set[RankName]] = defaultdict(set)
        """These ranks by the Manager's name."""
        self._processes: dict[tuple[str, int, GroupName], RankName] = {}
        self._superseded: dict[RankName, tuple[str, ...]] = {}
        """Earlier incarnations of each rank."""
        self._left: dict[RankName, str] = {}
        self._lapsed: dict[RankName, Target] = {}
        """Dropped for their silence in this run, and not replaced."""
        self._unheard: set[RankName] = set()
        """Restored as ranks that trained, and not heard by this monitor."""
        self._goes_on = False
        """True if one of these has answered, alive: their run is not over."""
        self.run: Run | None = None
        """The run of the ranks that are registered now; the last one, if there are none."""
        self._dead: set[RankName] = set()
        self._gone: set[RankName] = set()
        """Ranks at whose address nobody, or somebody else, listens."""
        self._unwatched: dict[str, tuple[Target, Registered, float]] = {}
        """Job -> its rank that was refused last, why, and when."""
        self._past: dict[str, None] = {}
        """Incarnations of older launches, the latest last."""
        self._moved: dict[RankName, tuple[int, float]] = {}
        """A rank's progress, and the Unix time at which it last changed."""
        self._contested: dict[str, float] = {}
        """Incarnations that want a living rank's name, group or monitor -> first seen."""
        self._answered: dict[RankName, float] = {}
        """Unix time of the last good answer to a poll."""
        self._parted: dict[RankName, tuple[float, StateReport]] = {}
        """Ranks that sent how they end: when, and what."""
        self._brought: Counter[str] = Counter()
        """Targets by bringer."""
        self._new: Counter[str] = Counter()
        """By address: new names in this minute."""
        self._minute = 0
        self.refused: Counter[str] = Counter()
        """Refused registrations by reason; only grows."""
        self._strange: dict[str, float] = {}
        """By client address: when it last tried to register without the right token."""

    def restore(self, bodies: Sequence[Mapping[str, Any]], run: Run | None = None) -> None:
        """Add targets that an earlier or another monitor saved, if their rank is not known here.

        Each has one lease to answer or to renew, without the grace: nobody knows for how long
        the monitor was away.
        """
        heard_s = self._clock.now_s() - LAPSE_GRACE_S
        with self._lock:
            if run is not None and self.run is None:
                self.run = replace(run, trend=())
        for body in bodies:
            try:
                target, superseded = target_from_json(body, heard_s)
                if (target.born_s or 0.0) > heard_s + LAPSE_GRACE_S:  # the clock was set back
                    target = replace(target, born_s=None)
            except (KeyError, TypeError, ValueError):
                continue  # written by another version: its next renewal restores it
            with self._lock:
                if target.rank not in self._targets:
                    self._put(target)
                    self._superseded[target.rank] = superseded
                    self._unheard |= {target.rank} if target.trained_as else set()

    def save_all(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Write every target that the store lacks or has differently: this monitor writes now."""
        saved = {json.dumps(body) for body in stored}
        with self._lock:
            for rank, target in self._targets.items():
                body = target_to_json(target, self._superseded.get(rank, ()))
                if json.dumps(body) not in saved:
                    self._store.save_target(rank, body)

    def register(self, registration: Registration, address: str = "") -> Registered:
        """Register or renew; anything but CURRENT says why not. `address`: the client's."""
        identity = registration.identity
        lease_s = min(max(registration.lease_s, LEASE_MIN_S), LEASE_MAX_S)
        now_s = self._clock.now_s()
        born_s = None if registration.age_s is None else now_s - registration.age_s
        died_s = None if registration.dead_age_s is None else now_s - registration.dead_age_s
        claim = registration.claim or Claim()
        target = Target(
            identity, registration.url, lease_s, now_s, born_s, died_s,
            claim=replace(claim, secret=""), proved=digest(claim.secret) == identity.incarnation,
            bringer=_network(address),
        )  # fmt: skip
        with self._lock:
            standing = self._admit(target)
            if standing is not Registered.CURRENT:
                self.refused[standing] += 1
            elif (last := registration.last) is not None and not last.process.alive:
                self._parted[identity.rank] = now_s, last
                self._note(identity.rank, last)
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
            unwatched = [row for row in self._unwatched.values() if row[2] >= since_s]
        for target, why, _ in unwatched[-3:]:
            who = f"{target.rank} of job {target.identity.job} is not watched"
            yield f"{who}{self._elsewhere(target)}: {ALOUD[why]}"
        if lately:
            more = f" and {len(lately) - 3:,} more" if len(lately) > 3 else ""
            yield (
                f"ranks that are not shown want to register from {', '.join(lately[-3:])}{more}: "
                "their token is wrong or missing (LIGHTKEEPER_TOKEN_FILE, where they are started)"
            )

    @property
    def renew_s(self) -> float | None:
        """How long ranks may wait between renewals in a large fleet: polls keep a lease as well.

        None: as long as they like.
        """
        wanted_s = len(self._targets) / RENEWALS_A_SECOND
        return min(RENEW_MOST_S, wanted_s) if wanted_s > RENEW_LEAST_S else None

    def _admit(self, target: Target) -> Registered:
        rank, old = target.rank, self._targets.get(target.rank)
        fresh = old is None or not _is(old, target.identity)
        refusal = self._over(target)
        if refusal is None and fresh:
            refusal = self._objection(target, old) or self._outlived(target, old)
        elif refusal is None and old is not None and self._moves_unproved(target, old):
            refusal = Registered.TAKEN
        if refusal is not None:
            return refusal
        if fresh:
            renamed = target.process in self._processes
            self._unheard.discard(rank)
            self._take_over(target)
            self._begin(target, new=not renamed)
        elif old is not None:
            target = _renewed(target, old)
        self._put(target)
        if self._left.get(rank) == target.identity.incarnation:
            del self._left[rank]
        if old is None or replace(target, heard_s=old.heard_s, born_s=old.born_s) != old:
            self._save(rank)
        return Registered.CURRENT

    def _save(self, rank: RankName) -> None:
        body = target_to_json(self._targets[rank], self._superseded.get(rank, ()))
        self._store.save_target(rank, body)

    def _outlived(self, target: Target, old: Target | None) -> Registered | None:
        """Put off the elder of two incarnations; refuse the one that asks if that is it."""
        if old is None:
            return None
        elder = target if older(target, old) else old
        elders = (*self._superseded.get(target.rank, ()), elder.identity.incarnation)
        self._superseded[target.rank] = elders[-SUPERSEDED_KEPT:]
        return Registered.SUPERSEDED if elder is target else None

    def _over(self, target: Target) -> Registered | None:
        """Refuse a rank whose time is over, as was decided before."""
        if target.identity.incarnation in self._superseded.get(target.rank, ()):
            return Registered.SUPERSEDED
        return Registered.OVER if target.identity.incarnation in self._past else None

    def _objection(self, target: Target, old: Target | None) -> Registered | None:
        """Why a new incarnation is refused; None if it is not."""
        if old is None and len(self._targets) >= RANKS_MOST:
            return Registered.FULL
        if old is None and target.bringer and self._is_hasty(target.bringer):
            return Registered.HASTY
        if self._is_anothers(target):
            return Registered.REFUSED
        if target.dead:
            taken = old is not None and self._lives(old)
            alone = taken or not self._has_company(target)
            return Registered.OVER if alone else None
        return self._rivalled(target, old)

    def _has_company(self, dead: Target) -> bool:
        """True if a rank that may be of a dead one's run lives."""
        mates = self._groups.get(dead.identity.group, ())
        return any(
            not other.dead and not over_before(dead, other) and same_job(dead, other)
            and (other.rank not in mates or same_world(dead, other))
            for other in self._targets.values()
        )  # fmt: skip

    def _rivalled(self, target: Target, old: Target | None) -> Registered | None:
        """Refuse a name that a living rank has, a group of another launch, or a monitor of another
        job. Who is alive was seen at the last poll, so it is asked again before it is believed.
        """
        holder = self._holder(target, old)
        if holder is not None and self._stands(holder, target):
            for rank in tuple(self._groups[target.identity.group]):
                if rank != target.rank and not same_world(self._targets[rank], target):
                    self._leave_behind(rank)
        elif holder is not None:
            return self._contest(target, Registered.TAKEN)
        else:
            living = next(filter(self._lives, self._targets.values()), None)
            if living is not None and not same_job(living, target):
                return self._contest(target, Registered.OTHER_JOB)
        self._contested.pop(target.identity.incarnation, None)
        return None

    def _holder(self, target: Target, old: Target | None) -> Target | None:
        """The living rank that has this name, or one of another launch that has the group."""
        if old is not None and self._lives(old):
            return old
        mates = map(self._targets.__getitem__, self._groups.get(target.identity.group, ()))
        mate = next(filter(self._lives, mates), None)
        return None if mate is None or same_world(mate, target) else mate

    def _contest(self, target: Target, why: Registered) -> Registered:
        """Refuse a living rank: for now, and with a warning once its rival is known to live."""
        now_s, incarnation = self._clock.now_s(), target.identity.incarnation
        first_s = self._contested.setdefault(incarnation, now_s)
        unnamed = target.identity.group == UNNAMED and bool(target.claim.lighthouse)
        if unnamed or now_s - first_s < CONTEST_S:
            return Registered.WAIT
        if target.identity.job not in self._unwatched:
            where = f"{target.url}{self._elsewhere(target)}"
            about = {"group": target.identity.group, "rank": target.rank}
            log.warning("%s is not watched (%s): %s", target.rank, where, ALOUD[why], extra=about)
        self._unwatched[target.identity.job] = target, why, now_s
        for table in (self._contested, self._unwatched):
            if len(table) > STRANGE_MOST:
                del table[next(iter(table))]
        return why

    def _elsewhere(self, target: Target) -> str:
        """What may be the mistake: it asks another Lighthouse than those that are watched."""
        watched = (each.claim.lighthouse for each in tuple(self._targets.values()))
        own, others = target.claim.lighthouse, next(filter(None, watched), "")
        if not own or not others or own == others:
            return ""
        return f", for it asks the Lighthouse at {own} and the others {others}"

    def _stands(self, holder: Target, target: Target) -> bool:
        """True if a name may go from a living rank to a new one of its host: its launcher continued
        without it. A rank of a job that trains never stands still for that long.
        """
        moved_s = self._moved.get(holder.rank, (0, holder.heard_s))[1]
        return holder.address == target.address and self._clock.now_s() - moved_s > STANDS_S

    def _moves_unproved(self, target: Target, old: Target) -> bool:
        """True if somebody takes a living incarnation to another address without its secret."""
        return not target.proved and old.url != target.url and self._lives(old)

    def _is_hasty(self, bringer: str) -> bool:
        minute = int(self._clock.now_s() // 60)
        if minute != self._minute:
            self._minute, self._new = minute, Counter()
        return self._new[bringer] >= NEW_A_MINUTE or self._brought[bringer] >= RANKS_MOST // 2

    def _lives(self, target: Target) -> bool:
        """True if it was alive when last asked, not long ago."""
        heard_s = self._clock.now_s() - self._heard_s(target)
        return not target.dead and target.rank not in self._gone and heard_s <= ANSWERS_S

    def _is_anothers(self, target: Target) -> bool:
        """True if a living group of another launcher has the name that its Manager gives the group.

        If two launchers' groups are renamed alike, the first to register has the name.
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
        """Drop the process's former name, and ranks that only claimed their launcher's name."""
        self._new[target.bringer] += target.rank not in self._targets
        former = self._processes.get(target.process)
        if former is not None and former != target.rank:
            elders = self._superseded.get(former, ())
            self._drop(former)
            self._superseded[former] = elders  # they stay superseded under the former name
        if target.identity.launched_as is None:
            for rank in tuple(self._claimed.get(target.identity.group, ())):
                self._drop(rank)  # comes back under its launcher's name

    def _begin(self, target: Target, *, new: bool) -> None:
        """Drop ranks of an older launch of its group. If the process is new and no rank of the last
        run may still live, begin a new run, and drop the dead of the last one.
        """
        ended, itself = self._dead | self._gone, {target.rank}
        others = len(self._targets) - (target.rank in self._targets)
        if self.run is None or (new and len(ended - itself) == others):
            everybody = self._targets.values()
            if self.run is None or not any(same_launch(other, target) for other in everybody):
                self._new_run(target)
                for rank in self._targets.keys() - itself:
                    self._leave_behind(rank)
        for rank in (ended - itself) & self._groups.get(target.identity.group, set()):
            if not same_world(self._targets[rank], target):
                self._leave_behind(rank)

    def _leave_behind(self, rank: RankName) -> None:
        """Drop a rank of an older launch, and remember it: its WorkerServer lingers."""
        self._past[self._targets[rank].identity.incarnation] = None
        if len(self._past) > PAST_KEPT:
            del self._past[next(iter(self._past))]
        self._drop(rank)

    def _new_run(self, target: Target) -> None:
        now_s = self._clock.now_s()
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%d-%H%M%S")
        again = self.run is not None and self.run.id == moment
        name = RunId(f"{moment}-2" if again else moment)
        self.run = Run(name, target.identity.job, now_s, bringer=target.bringer)
        self._lapsed.clear()
        self._unheard.clear()
        self._goes_on = False
        self._store.save_run(self.run)

    def run_age_s(self) -> float:
        """How long ago the run began; 0: there is none."""
        return 0.0 if self.run is None else max(0.0, self._clock.now_s() - self.run.began_s)

    def _put(self, target: Target) -> None:
        rank, identity = target.rank, target.identity
        if (old := self._targets.get(rank)) is not None:
            self._forget(old)
        self._targets[rank] = target
        self._lapsed.pop(rank, None)
        self._brought[target.bringer] += 1
        (self._dead.add if target.dead else self._dead.discard)(rank)
        self._gone.discard(rank)
        self._groups[identity.group].add(rank)
        self._processes[target.process] = rank
        if identity.launched_as is not None:
            self._renamed[identity.launched_as].add(rank)
            self._claimed[identity.group].add(rank)

    def _forget(self, target: Target) -> None:
        self._groups[target.identity.group].discard(target.rank)
        self._processes.pop(target.process, None)
        self._brought[target.bringer] -= 1
        if not self._brought[target.bringer]:
            del self._brought[target.bringer]
        if target.identity.launched_as is not None:
            self._renamed[target.identity.launched_as].discard(target.rank)
            self._claimed[target.identity.group].discard(target.rank)

    def known_as(self, identity: Identity) -> GroupName | None:
        """The name that its Managers gave this launcher's group; None: no name, or several."""
        with self._lock:
            if identity.launched_as is not None or identity.group == UNNAMED:
                return None
            names = {
                self._targets[rank].identity.group for rank in self._renamed.get(identity.group, ())
            }
        return names.pop() if len(names) == 1 else None

    def unregister(self, rank: RankName, incarnation: str, secret: str = "") -> bool:
        """Remove a rank, if this incarnation still has the name, and it is itself that asks."""
        with self._lock:
            target = self._targets.get(rank)
            if target is None or target.identity.incarnation != incarnation:
                return False
            if target.proved and digest(secret) != incarnation:
                return False
            self._left[rank] = incarnation
            self._drop(rank)
            return True

    def _drop(self, rank: RankName) -> None:
        self._forget(self._targets.pop(rank))
        self._superseded.pop(rank, None)
        self._answered.pop(rank, None)
        self._moved.pop(rank, None)
        self._parted.pop(rank, None)
        self._gone.discard(rank)
        self._dead.discard(rank)
        self._unheard.discard(rank)
        self._store.drop_target(rank)

    def heard(self, reports: Mapping[RankName, StateReport]) -> None:
        """Record ranks that just answered a poll as the registered incarnation, alive or dead."""
        now_s = self._clock.now_s()
        with self._lock:
            for rank, report in reports.items():
                target, process = self._targets.get(rank), report.process
                if target is None or not _is(target, report.identity):
                    continue  # it has registered since the poll began
                self._gone.discard(rank)
                self._answered[rank] = now_s
                if rank in self._unheard:
                    self._unheard.discard(rank)
                    self._goes_on |= process.alive
                self._note(rank, report)
                if target.dead is process.alive:
                    died_s = None if process.alive else now_s - (process.dead_age_s or 0.0)
                    self._targets[rank] = replace(self._targets[rank], died_s=died_s)
                    (self._dead.discard if process.alive else self._dead.add)(rank)
                marks = sum(head.enqueued for head in report.heads)
                marks += 0 if report.step is None else report.step.progress
                if self._moved.get(rank, (-1, 0.0))[0] != marks:
                    self._moved[rank] = marks, now_s
            self._part()

    def _note(self, rank: RankName, report: StateReport) -> None:
        """Keep in the store as what a rank trains, for a monitor that never hears it."""
        step = report.step
        over = step is None or step.phase == FINISHED_PHASE or report.process.exit_code == 0
        trained_as = None if step is None or over or not step.commits else step.replica_id
        if (target := self._targets[rank]).trained_as != trained_as:
            self._targets[rank] = replace(target, trained_as=trained_as)
            self._save(rank)

    def gone(self, who: Iterable[Identity]) -> None:
        """Record ranks at whose address nobody listens, or somebody else."""
        with self._lock:
            for identity in who:
                target = self._targets.get(identity.rank)
                if target is not None and _is(target, identity):
                    self._gone.add(identity.rank)
            self._part()

    def current(
        self, observations: tuple[Observation, ...]
    ) -> tuple[tuple[Observation, ...], Run | None]:
        """Observations of ranks that were not replaced, nor left behind, since they were asked; and
        their run: a rank that registers in between begins the next one.
        """
        with self._lock:
            past = bool(self._parted) or self._goes_on
            still = tuple(
                self._as_it_was(seen) if past else seen
                for seen in observations
                if self._is_current(seen.identity)
            )
            return still, self.run

    def _as_it_was(self, seen: Observation) -> Observation:
        """Add what a rank that no longer answers sent while it ended, and, if this monitor never
        heard it, under which replica id it trained.
        """
        if seen.rank in self._unheard and seen.report is None:
            seen = structs.replace(seen, trained_as=self._targets[seen.rank].trained_as)
        at_s, last = self._parted.get(seen.rank, (0.0, None))
        if last is None or seen.report is not None or last.identity.life != seen.identity.life:
            return seen
        dead_s = (last.process.dead_age_s or 0.0) + self._clock.now_s() - at_s
        process = structs.replace(last.process, dead_age_s=dead_s)
        return structs.replace(seen, outcome=structs.replace(last, process=process))

    def _is_current(self, identity: Identity) -> bool:
        target = self._targets.get(identity.rank)
        if target is None:
            return identity.incarnation not in self._past
        return _is(target, identity)

    def _part(self) -> None:
        """Drop a rank that was taken for a mate of living ranks until its death showed that it was
        not: one of the last launch, whose end was not seen yet when this one began.
        """
        ended = self._dead | self._gone
        living = [target for target in self._targets.values() if ended and self._lives(target)]
        mates = {target.identity.group: target for target in living}
        for rank in ended:
            mate = mates.get(self._targets[rank].identity.group)
            if mate is not None and not same_world(self._targets[rank], mate):
                self._leave_behind(rank)
        if living and self._dead:
            self._part_runs(min(living, key=lambda target: target.born_s or 0.0))

    def _part_runs(self, first: Target) -> None:
        """Begin a run if all that are dead died before the first of the living was born."""
        over = all(over_before(self._targets[rank], first) for rank in self._dead)
        if over and self.run is not None and self.run.began_s < (first.born_s or 0.0):
            self._new_run(first)
            for rank in tuple(self._dead):
                self._leave_behind(rank)

    def _heard_s(self, target: Target) -> float:
        """When a target last renewed its lease or answered."""
        return max(target.heard_s, self._answered.get(target.rank, target.heard_s))

    def expire(self) -> tuple[Target, ...]:
        """Drop and return the targets that have been silent for their lease and the grace."""
        now_s, twice = self._clock.now_s(), self._unheard if self._goes_on else set()
        with self._lock:
            silent = []
            for target in self._targets.values():
                # those that were restored without it and are missing from their run: twice
                grace_s = LAPSE_GRACE_S * (2 if target.rank in twice else 1)
                if now_s - self._heard_s(target) > target.lease_s + grace_s:
                    silent.append(target)
            for target in silent:
                self._drop(target.rank)
                self._lapsed[target.rank] = target
            for rank in list(self._lapsed)[:-PAST_KEPT]:
                del self._lapsed[rank]
        return tuple(silent)

    def lapsed(self, group: GroupName) -> tuple[Target, ...]:
        """The targets of a group that were dropped for their silence, and nobody has replaced."""
        with self._lock:
            return tuple(
                target for target in self._lapsed.values() if target.identity.group == group
            )

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
            over = incarnation in self._past or incarnation in self._superseded.get(rank, ())
            if target is not None or over:
                return Registered.SUPERSEDED
            if self._left.get(rank) == incarnation:
                return Registered.LEFT
            return Registered.UNKNOWN
