"""Keeps the gate's deny list up to date: one thread compares what it shows with what it should.

A gate forgets its list when it restarts, and another monitor may have sent it a different one. So
the thread looks every second, and sends the list whenever the two differ. A gate that is away, or
does not take the list, is shown as a trouble; it delays no tick and no other rung.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lightkeeper.gate.denylist import (
    DENIALS_MAX,
    IDS_MAX,
    NAME_MAX,
    REASON_MAX,
    Denial,
    DenialScope,
    GateAway,
    GateView,
    denials_json,
)
from lightkeeper.monitor.act.http import NO_GROUP, Fetcher, FetchError, Question
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.eviction import ASKING, Eviction, QuarantineEntry
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.monitor.model.plain import from_plain

# -- replica hosts ------------------------------------------------------------------------------
# Which replica id ran on which host, according to its ranks' reports.

LASTS_S: Final = 24 * 3600.0
"""How long a denial lasts if nothing shows that it is no longer needed. A replica id that is not
seen for this long is dead."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a replica group, by its replica id."""

    replica_id: ReplicaId
    group: GroupName
    world_size: int
    born_s: float
    """Unix time at which its first rank attached, by the rank's own account. Else when it was first
    seen, or -inf if that was in this monitor's first tick."""
    first_seen_s: float
    seen_s: float
    hosts: frozenset[Host] = frozenset()
    ranks: frozenset[RankName] = frozenset()
    """Seen so far under this id."""


@dataclass(slots=True)
class ReplicaHosts:
    """All incarnations of the last day."""

    lives: dict[ReplicaId, Incarnation] = field(default_factory=dict)
    _looked: bool = False

    def saw(
        self,
        observations: Iterable[Observation],
        now_s: float,
        registered: Callable[[RankName], Target | None] = lambda _: None,
    ) -> None:
        """Take in one tick, of ranks that are registered so."""
        unknown_s = now_s if self._looked else float("-inf")
        for seen in observations:
            who, report = seen.identity, seen.report
            step = None if report is None or not report.process.alive else report.step
            if step is None or step.replica_id is None:
                continue
            self._looked = True
            target, name = registered(seen.rank), step.replica_id
            born_s = unknown_s if target is None or target.born_s is None else target.born_s
            new = Incarnation(name, who.group, who.world_size, born_s, now_s, now_s)
            life = self.lives.get(name, new)
            self.lives[name] = replace(
                life,
                hosts=life.hosts | {who.host},
                ranks=life.ranks | {seen.rank},
                born_s=min(life.born_s, born_s),
                seen_s=now_s,
            )
        for replica_id, life in list(self.lives.items()):
            if now_s - life.seen_s > LASTS_S:
                del self.lives[replica_id]

    def all(self) -> tuple[Incarnation, ...]:
        """Sorted by replica id."""
        return tuple(self.lives[name] for name in sorted(self.lives))


# -- denials -----------------------------------------------------------------------------------

LINGER_S: Final = 600.0
"""How long a denial outlasts its eviction: a manager that nobody saw may still retry."""
PRESENT_S: Final = 60.0
"""An incarnation seen within this time counts as still running, which is in its favour."""
SETTLE_S: Final = 3.0
"""After this time an incarnation is admitted even if some of its ranks do not report yet."""


def deny_list(
    evictions: Iterable[Eviction],
    quarantine: Sequence[QuarantineEntry],
    lives: Sequence[Incarnation],
    now_s: float,
    groups: Sequence[QuarantineEntry] = (),
) -> tuple[Denial, ...]:
    """The gate's whole deny list, from evictions and the quarantine: sorted, each name once.

    Theory of operation. Refusing a group at the gate *is* evicting it, so only groups that were
    evicted, or that started where they must not, are refused:

    - an evicted replica id is refused from the first rung that sends a request until 10 minutes
      after its processes were seen gone and it had left the quorum; if that is never seen, for a
      day;
    - a quarantined host is refused, unless an incarnation that started there before the quarantine
      still runs and was not evicted: quarantine keeps groups from coming back and ends none;
    - a quarantined group is denied by name, except for incarnations that ran before;
    - if an incarnation of a group was evicted from a quarantined host, or started on one, the group
      is denied by name: incarnations known to run elsewhere are admitted, those on such a host are
      refused, and the gate holds an unknown one until the next list, a few seconds.

    Everything follows from records with fixed times, so the list stays the same while nothing
    happens.

    `quarantine` names hosts, `groups` replica groups: all that are in force.
    """
    evicted = _evicted(evictions, now_s)

    def settled(life: Incarnation, entry: QuarantineEntry) -> bool:
        """True if an incarnation ran there before it was quarantined, and may stay."""
        runs = now_s - life.seen_s <= PRESENT_S and life.replica_id not in evicted
        return runs and life.born_s < entry.since_s

    def admitted(life: Incarnation) -> bool:
        """True if an incarnation that is not refused may pass: it is known where it runs."""
        whole = len(life.ranks) >= life.world_size or now_s - life.first_seen_s >= SETTLE_S
        return whole and life.replica_id not in evicted

    hosts = {entry.host: entry for entry in quarantine}
    denials = [*evicted.values()]
    for host, entry in hosts.items():
        if not any(host in life.hosts and settled(life, entry) for life in lives):
            reason = _plain(f"host quarantined: {entry.reason}")
            denials.append(Denial(DenialScope.HOST, host, reason, entry.until_s, entry.incident_id))
    named = {GroupName(entry.name): entry for entry in groups}
    denials += _groups(hosts, named, lives, settled, admitted)
    sound = (
        denial for denial in denials if denial.name.isprintable() and len(denial.name) <= NAME_MAX
    )
    return tuple(sorted(sound, key=lambda denial: (denial.scope, denial.name)))[:DENIALS_MAX]


def _evicted(evictions: Iterable[Eviction], now_s: float) -> dict[ReplicaId, Denial]:
    denials: dict[ReplicaId, Denial] = {}
    for eviction in sorted(
        evictions, key=lambda eviction: (eviction.asked_s, eviction.incident_id)
    ):
        if eviction.replica_id is None or not any(rung.rung in ASKING for rung in eviction.rungs):
            continue
        until_s = eviction.asked_s + LASTS_S
        if eviction.gone_s is not None and eviction.left_quorum_s is not None:
            until_s = min(until_s, max(eviction.gone_s, eviction.left_quorum_s) + LINGER_S)
        if until_s > now_s:
            name, incident_id = eviction.replica_id, eviction.incident_id
            reason = _plain(f"{eviction.group} was evicted ({incident_id})")
            denials[name] = Denial(DenialScope.REPLICA, name, reason, until_s, incident_id)
    return denials


def _groups(
    hosts: Mapping[Host, QuarantineEntry], named: Mapping[GroupName, QuarantineEntry],
    lives: Sequence[Incarnation], settled: Callable[[Incarnation, QuarantineEntry], bool],
    admitted: Callable[[Incarnation], bool],
) -> list[Denial]:  # fmt: skip
    """Denials by name. A quarantined group (`named`) is on all hosts as on a quarantined one."""
    barred = dict(named)
    refused: defaultdict[GroupName, set[ReplicaId]] = defaultdict(set)
    for life in lives:
        entries = [hosts[host] for host in sorted(life.hosts) if host in hosts]
        entries += [named[life.group]] if life.group in named else []
        unsettled = [entry for entry in entries if not settled(life, entry)]
        if unsettled:
            barred.setdefault(life.group, unsettled[0])
            refused[life.group].add(life.replica_id)
    denials = []
    for group, entry in barred.items():
        why = "is quarantined" if group in named else f"must not run on {entry.host}"
        reason = _plain(f"{group} {why}: {entry.reason}")
        good = [each.replica_id for each in lives if each.group == group and admitted(each)]
        good = [replica_id for replica_id in good if replica_id not in refused[group]]
        ids = frozenset(good[-IDS_MAX:]), frozenset(sorted(refused[group])[-IDS_MAX:])
        denials.append(
            Denial(DenialScope.GROUP, group, reason, entry.until_s, entry.incident_id, *ids)
        )
    return denials


def _plain(reason: str) -> str:
    """As a gate takes it: printable, and not empty."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(reason.split()))
    return line[:REASON_MAX] or "no reason given"


# -- gatekeeper --------------------------------------------------------------------------------

log = logging.getLogger(__name__)

ASK_S: Final = 2.0
"""Deadline for a look, and for sending a list."""
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
"""A replica takes about 500 bytes, a denial 500 and 50 more for each replica id in it."""
PERIOD_S: Final = 1.0
SAME_S: Final = 2.0
"""Clocks differ: an entry about to expire may be in force here and not there."""


class Gatekeeper:
    """Keeps one gate's list up to date. Safe to use from any thread. Close it when done."""

    def __init__(
        self,
        url: str,
        fetcher: Fetcher,
        *,
        clock: Clock,
        quarantine: Quarantine,
        period_s: float = PERIOD_S,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """`url`: of its admin port. `may`: whether this monitor is the one that acts; a standby
        sends no list.
        """
        self._url, self._fetcher = url.rstrip("/"), fetcher
        self._clock = clock
        self._quarantine = quarantine
        self._may = may
        self._evictions: Callable[[], Iterable[Eviction]] = tuple
        self._lock = threading.Lock()
        self._hosts = ReplicaHosts()
        self._past: dict[IncidentId, Eviction] = {}
        self.view: GateView | GateAway = GateAway("not looked at yet")
        self.began_s: float | None = None
        """Unix time at which the gate began to serve; None: not known."""
        self._since_s: dict[ReplicaId, float] = {}
        self._used_s: dict[ReplicaId, float] = {}
        """Ids that were seen at this gate -> when last. It forgets silent ones within minutes."""
        self._problem: str | None = None
        self.taught = 0
        self.failed = 0
        self._worker = BackgroundWorker("teaching the gate", self.turn, every_s=period_s)

    def start(
        self,
        evictions: Callable[[], Iterable[Eviction]],
        remembered: Iterable[Eviction] = (),
    ) -> None:
        """`evictions` returns those under way and recently ended; `remembered`: the last day's."""
        self._evictions = evictions
        self.remember(remembered)
        self._worker.start()

    def remember(self, evictions: Iterable[Eviction]) -> None:
        with self._lock:
            self._past.update({eviction.incident_id: eviction for eviction in evictions})

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; the gate keeps its list."""
        self._worker.close(timeout_s)

    def saw(
        self,
        observations: Iterable[Observation],
        registered: Callable[[RankName], Target | None] = lambda _: None,
    ) -> None:
        """Take in one tick, see `ReplicaHosts.saw`."""
        with self._lock:
            self._hosts.saw(observations, self._clock.now_s(), registered)

    def wake(self) -> None:
        """Compare the lists now."""
        self._worker.wake()

    @property
    def up(self) -> bool:
        return isinstance(self.view, GateView)

    def troubles(self) -> Iterator[str]:
        """Why the gate cannot be looked at or does not take its list: one sentence, or none."""
        view, crash, problem = self.view, self._worker.crash, self._problem
        if isinstance(view, GateAway):
            yield f"the gate is away: {view.reason}"
        elif crash is not None:
            yield f"teaching the gate {crash}"
        elif problem is not None:
            yield problem

    def refusing_for_s(self, replica_id: ReplicaId) -> float | None:
        """How long the gate has been seen to refuse a replica id; None if it does not.

        Also None if the id never used this gate: it may reach the Lighthouse another way.
        """
        view, since_s = self.view, self._since_s.get(replica_id)
        if isinstance(view, GateAway) or since_s is None or view.seen(replica_id) is None:
            return None
        return max(0.0, self._clock.now_s() - since_s)

    def fences(self, replica_id: ReplicaId) -> bool:
        """True if an id that has used this gate is refused: no process of it enters a quorum."""
        return self.up and replica_id in self._since_s and replica_id in self._used_s

    # -- the thread ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Look at the gate once, and send the list if it shows a different one."""
        view = self._note(self._look())
        wanted = self.wanted()  # on a standby too: remembers what the active evicts
        if isinstance(view, GateAway) or not self._may():
            return
        if _same(wanted, view.denied, self._clock.now_s()):
            self._problem = None
            return
        problem = self._deny(wanted)
        if problem is None:
            view = self._note(self._look())
            if isinstance(view, GateAway):
                problem = view.reason
            elif not _same(wanted, view.denied, self._clock.now_s()):
                problem = "it shows another list all the same"
        if problem is None:
            self.taught, self._problem = self.taught + 1, None
            log.info("the gate refuses %d names now", len(wanted))
        else:
            self.failed += 1
            self._problem = f"the gate does not take its list: {problem}"
            log.warning("%s", self._problem)

    def wanted(self) -> tuple[Denial, ...]:
        now_s = self._clock.now_s()
        self._past.update({eviction.incident_id: eviction for eviction in self._evictions()})
        for incident_id, eviction in list(self._past.items()):
            if now_s - eviction.asked_s > LASTS_S:
                del self._past[incident_id]
        with self._lock:
            lives = self._hosts.all()
        hosts, groups = self._quarantine.active(), self._quarantine.groups()
        return deny_list(self._past.values(), hosts, lives, now_s, groups)

    def _look(self) -> GateView | GateAway:
        question = Question(f"{self._url}/v1/gate", ASK_S, ANSWER_MAX_BYTES, group=NO_GROUP)
        try:
            answer = self._fetcher.ask(question)
            if answer.status != 200:
                return GateAway(f"GET /v1/gate {answer.summary}")
            return from_plain(GateView, json.loads(answer.body))
        except FetchError as exc:
            return GateAway(str(exc))
        except (ValueError, RecursionError) as exc:
            return GateAway(f"cannot read its answer: {exc}"[:300])

    def _deny(self, denials: tuple[Denial, ...]) -> str | None:
        """Replace the gate's list; returns what went wrong, in one line. A look must confirm it."""
        url, body = f"{self._url}/v1/gate/denied", denials_json(denials)
        question = Question(url, ASK_S, ANSWER_MAX_BYTES, "PUT", json=body, group=NO_GROUP)
        try:
            answer = self._fetcher.ask(question)
        except FetchError as exc:
            return str(exc)
        return None if answer.status == 200 else f"PUT /v1/gate/denied {answer.summary}"

    def _note(self, view: GateView | GateAway) -> GateView | GateAway:
        if isinstance(view, GateAway) and isinstance(self.view, GateView):
            log.warning("the gate is away: %s", view.reason)
        self.view = view
        if isinstance(view, GateAway):
            return view  # its next answer shows whether it still refuses the same
        refused = {
            ReplicaId(denial.name) for denial in view.denied if denial.scope is DenialScope.REPLICA
        }
        now_s = self._clock.now_s()
        used_s = self._used_s | {replica.replica_id: now_s for replica in view.replicas}
        self._used_s = {name: at_s for name, at_s in used_s.items() if now_s - at_s < LASTS_S}
        self.began_s = None if view.age_s is None else now_s - view.age_s
        self._since_s = {name: self._since_s.get(name, now_s) for name in refused}
        return view


def _same(wanted: Iterable[Denial], shown: Iterable[Denial], now_s: float) -> bool:
    lasting = {denial for denial in wanted if not denial.expired(now_s + SAME_S)}
    return lasting == {denial for denial in shown if not denial.expired(now_s + SAME_S)}
