"""One decision for each firing incident, and the order in which the guards are asked.

First doubts about the verdict itself, then what makes an eviction pointless or unwanted, then
whether the monitor can be trusted, then what protects the fleet, last what the operator asked for,
so that a pause and observe mode say "would evict" only when no other guard objects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from lightkeeper.monitor.decide.rules import DEFAULT, Policy, PolicyAction, utc_moment
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    EndManner,
    Eviction,
    EvictionState,
    Guard,
    Hold,
    Ruling,
)
from lightkeeper.monitor.model.incident import Incident, oldest_first
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE, Pause
from lightkeeper.monitor.model.verdict import TAKEN, Confidence, Kind
from lightkeeper.monitor.model.wording import listed, seconds

# -- lessons -----------------------------------------------------------------------------------
# What earlier evictions taught: where the same fault was before, and what an eviction costs.
#
# The cost is in fleet seconds, as a straggler's `lost_s` is: seconds in which all groups stood
# still (from asking to the survivors' next commit), plus those in which one group was missing
# (until it committed again) times its share of the fleet.

COSTS_KEPT: Final = 16
"""The cost is learned from this many latest evictions. More react later to a change of the job,
fewer react to one odd restart."""
COST_BOUNDS: Final = (0.2, 20.0)
"""Bounds of a learned cost, in multiples of the configured one: a launcher that waits for a person
is no cost of evicting."""
_TOLD: Final = re.compile(r"\bmin_replicas\s+(\d{1,6})\b")


@dataclass(frozen=True, slots=True)
class Cost:
    """What an eviction costs, in fleet seconds."""

    seconds: float
    evictions: int = 0
    """How many it was learned from; 0: as configured."""


def teaches(incident: Incident) -> bool:
    """True if somebody was evicted for it, or a rank died of it."""
    return incident.milestones.evict_asked_s is not None or incident.kind is Kind.DEAD


def price_s(incident: Incident, groups: int) -> float | None:
    """What the eviction for an incident cost a fleet of `groups` groups, in fleet seconds; None:
    nobody was evicted, or what came of it was not seen.
    """
    marks = incident.milestones
    asked_s, others_s, back_s = marks.evict_asked_s, marks.survivor_commit_s, marks.rejoined_s
    if asked_s is None or others_s is None or back_s is None:
        return None
    stall_s = max(0.0, others_s - asked_s)
    return stall_s + max(0.0, max(0.0, back_s - asked_s) - stall_s) / max(1, groups)


def cost(lessons: Sequence[Incident], groups: int, config: KeeperConfig) -> Cost:
    """What an eviction costs a fleet of `groups` groups: the median of those measured."""
    prices_s = (price_s(lesson, groups) for lesson in lessons)
    costs_s = [each for each in prices_s if each is not None][-COSTS_KEPT:]
    if not costs_s:
        return Cost(config.eviction_cost_s)
    low, high = (times * config.eviction_cost_s for times in COST_BOUNDS)
    return Cost(min(max(median(costs_s), low), high), len(costs_s))


def min_replicas_named(status: str) -> int | None:
    """`--min_replicas`, if the Lighthouse's sentence about the next quorum names it.

    TorchFT 0.2.0 names it whenever fewer participants than that have asked, so between any two
    quorums: `New quorum not ready, only have 0 participants, need min_replicas 3 [...]`.
    """
    match = _TOLD.search(status)
    return None if match is None else int(match[1])


# -- facts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One replica group, as far as a decision needs it."""

    group: GroupName
    healthy: bool
    """True if all its ranks are there and alive, contribute or wait to join, and no fired incident
    that stops ranks is about it, not even an unsure one."""
    alive: tuple[RankName, ...]
    """Ranks whose processes were seen alive in this tick."""
    replica_id: ReplicaId | None = None
    in_quorum: bool | None = None
    heartbeat_age_s: float | None = None
    dead_for_s: float | None = None
    """Since its first dead process died; None when none is dead."""
    hosts: Mapping[RankName, Host] = field(default_factory=dict)
    names: tuple[GroupName, ...] = ()
    """Its own name, and its launcher's where that differs."""
    traced: str = ""
    """Who traces one of its ranks now, in words; empty: nobody."""
    disk_wait: frozenset[RankName] = frozenset()
    """Ranks whose main thread waits in the kernel for a disk or file server (state D)."""
    kernels: bool = False
    """True if any of its ranks exchanges by kernels on a device."""


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """What the decisions of one tick are based on."""

    now_s: float
    groups: Mapping[GroupName, GroupFacts]
    accused: frozenset[GroupName]
    """Groups with a firing or evicting incident that is sure."""
    doubt: str | None
    """Why the monitor does not trust itself in this tick (`self_health`); None if it does."""
    lighthouse_away: str | None
    """Why the Lighthouse cannot be seen; None while it can."""
    without_lighthouse: Mapping[IncidentId, str | None] = field(default_factory=dict)
    """Open incident -> what is missing to judge it and confirm its eviction; None: nothing."""
    past: tuple[Eviction, ...] = ()
    """Asked for within the hour, whatever their outcome."""
    in_flight: tuple[GroupName, ...] = ()
    would: tuple[Eviction, ...] = ()
    """Evictions that observe mode held back: they count only for others that are only observed."""
    lessons: tuple[Incident, ...] = ()
    """What the evictions taught that are over, oldest first."""
    faults: Mapping[Host, Sequence[Incident]] = field(default_factory=dict)
    """Host -> earlier faults of its ranks that are over, of the incidents still remembered."""
    waited_for: frozenset[GroupName] = frozenset()
    """Accused groups for which a rank of a group that is not accused is seen waiting."""
    dead_hosts: frozenset[Host] = frozenset()
    """Hosts on which no rank is alive."""
    lighthouse_min_replicas: int | None = None
    """The Lighthouse's own flag; None until its page has shown it."""
    pause: Pause | None = None
    """None while evictions are not paused."""
    schedulers: bool = False
    """True if any can end a group that is out of sight."""


# -- case --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Objection:
    """Why not, and what would lift it, both without a full stop at the end."""

    reason: str
    release: str
    """What happens by itself, and what a person can do."""


_BEATS_S: Final = 3.0
"""A younger heartbeat is of a process that lives, seen or not: TorchFT sends 3 to 10 a second."""
NOBODY_LEFT: Final = "Nobody is left to evict"
_IF_IT_BEATS: Final = "It may be evicted if its heartbeat continues after all"
_LOST_AFTER_S: Final = 30.0
"""Silence before a scheduler is asked to end a group: longer than a link that flaps or a switch
that restarts its ports, and still 60 s before a group on another node should train."""


@dataclass(frozen=True, slots=True)
class Case:
    """One incident, and everything a guard may look at."""

    config: KeeperConfig
    policy: Policy
    fleet: DecisionFacts
    incident: Incident
    group: GroupName

    @property
    def left(self) -> list[GroupName]:
        """Its groups that can still be evicted: not all their processes are seen to be gone, or
        their heartbeat continues without them.
        """
        views = ((group, self.fleet.groups.get(group)) for group in self.incident.groups)
        return [group for group, view in views if view is not None and not self.gone(view)]

    def gone(self, view: GroupFacts) -> bool:
        """True if all processes of a group are gone, and its heartbeat has ended with them."""
        age_s, dead_s = view.heartbeat_age_s, view.dead_for_s
        if view.alive or dead_s is None:
            return False
        beats = age_s is not None and age_s + self.config.heartbeat_grace_s < dead_s
        return not (beats and view.in_quorum)

    @property
    def lost(self) -> bool:
        """True if its culprits are out of sight with their host, and a scheduler can end them:
        evictions with a budget of their own.
        """
        seen = self.view is not None and self.fleet.lighthouse_away is None
        sure = self.incident.verdict.lost and bool(self.incident.culprits)
        return seen and sure and self.fleet.schedulers

    @property
    def takes_nobody(self) -> bool:
        """True if the group is lost and its heartbeat has ended: no quorum counts it now."""
        age_s = None if self.view is None else self.view.heartbeat_age_s
        return self.lost and (age_s is None or age_s >= _BEATS_S)

    @property
    def act(self) -> str:
        """What would be done."""
        return f"have {self.group} ended by its scheduler" if self.lost else f"evict {self.group}"

    @property
    def by_hand(self) -> str:
        """What a person can do."""
        if not self.left:
            return ""
        first, *others = map(shlex.quote, self.left)
        alternatives = f" (or {', '.join(others[:3])})" if others else ""
        return f"To evict it yourself: lightkeeper evict {first}{alternatives}"

    def objection(self, reason: str, promise: str) -> Objection:
        """Why not, what happens next, and what a person can do.

        `promise`: what happens in a job in which this group may be evicted at all.
        """
        if not self.left:
            promise = NOBODY_LEFT
        elif self.action is PolicyAction.PAGE:
            promise = f"The policy never evicts for {self.incident.kind}"
        elif self.only_observed:
            promise = "Nobody is evicted in observe mode"
        return Objection(reason, _said(promise, self.by_hand))

    @property
    def tie(self) -> tuple[GroupName, ...]:
        """Groups of which one has to go, whichever; nobody is blamed."""
        return self.incident.verdict.tie

    @property
    def view(self) -> GroupFacts | None:
        """The accused group; None when it is no longer registered."""
        return self.fleet.groups.get(self.group)

    @property
    def action(self) -> PolicyAction:
        """What the operator allows for such an incident."""
        return self.policy.action(self.incident.kind, self.incident.severity)

    @property
    def only_observed(self) -> bool:
        """True if an eviction would only be recorded, not carried out."""
        return self.config.observe or self.action is PolicyAction.OBSERVE

    @property
    def past(self) -> tuple[Eviction, ...]:
        """Evictions that count against this one. If it is only observed, other observed ones count
        too, so that the record is what would have happened.
        """
        own, cut_short = self.incident.id, EvictionState.INTERRUPTED  # the same is asked again
        past = tuple(e for e in self.fleet.past if (e.incident_id, e.state) != (own, cut_short))
        return (*past, *self.fleet.would) if self.only_observed else past

    def goes_with(self, groups: Iterable[GroupName]) -> bool:
        """True if this group and all the others have one cause: a dead host that carried ranks of
        all, or healthy groups that wait for all. A group that waits for two waits for the second
        when the first is gone, and no quorum forms before.
        """
        hosts = (hosts_of(self.fleet, group) for group in (self.group, *groups))
        stand, others = self.fleet.waited_for, set(groups)
        same_stand = self.group in stand - others and others <= stand
        return bool(self.fleet.dead_hosts.intersection(*hosts)) or same_stand


def _said(*sentences: str) -> str:
    return ". ".join(filter(None, sentences))


def hosts_of(fleet: DecisionFacts, group: GroupName) -> frozenset[Host]:
    view = fleet.groups.get(group)
    return frozenset() if view is None else frozenset(view.hosts.values())


# -- fault guards ------------------------------------------------------------------------------
# Guards that look at the fault: does the verdict justify an eviction, and would one fix it?
#
# Each returns why not and what would lift it, or None.


def watch_only(case: Case) -> Objection | None:
    """There is no Lighthouse: no other group would train without this one."""
    missing = case.fleet.without_lighthouse.get(case.incident.id, "")
    if case.fleet.lighthouse_away != NO_LIGHTHOUSE or missing is None:
        return None
    end = "End the rank or the job by its scheduler" if case.left else ""
    return Objection("this monitor watches only", end)


def unsure(case: Case) -> Objection | None:
    """The verdict cannot tell which rank is to blame. A tie is broken once it has stood for long:
    both ends of a broken link agree, and while both stay, nobody trains.
    """
    candidates, tie_s = case.incident.candidates, case.config.tie_break_s
    if case.incident.verdict.confidence is not Confidence.UNSURE:
        return None
    if case.tie and tie_s:
        due_s = case.incident.milestones.first_seen_s + tie_s
        if case.fleet.now_s >= due_s:
            return None
        promise = f"{case.group} may be evicted from {utc_moment(due_s)} on (tie_break_s)"
        return case.objection(f"one of {listed(case.tie)} has to be evicted", promise)
    doubt = "no rank can be named"
    if candidates:
        doubt = f"cannot tell whether it is {listed(candidates, last='or')}"
    if len(candidates) == 1:
        doubt = f"it is not certain that it is {candidates[0]}"
    return case.objection(
        case.incident.verdict.spare or doubt,
        "A group may be evicted once the evidence names a rank",
    )


def spared(case: Case) -> Objection | None:
    """The verdict itself says why an eviction would not fix it."""
    why = case.incident.verdict.spare
    return case.objection(why, "An eviction would not fix it") if why else None


def already_gone(case: Case) -> Objection | None:
    """The group left by itself."""
    view, incident = case.view, case.incident
    if view is None:
        return Objection(f"{case.group} is no longer registered", NOBODY_LEFT)
    if (
        incident.replica_ids
        and view.replica_id is not None
        and view.replica_id not in incident.replica_ids
    ):
        return Objection(f"{case.group} is another process by now", NOBODY_LEFT)
    dies = incident.kind in (Kind.DEAD, Kind.MISMATCH)  # gloo ends ranks at a mismatch
    away = case.fleet.lighthouse_away is not None
    beats = view.heartbeat_age_s is not None and view.heartbeat_age_s < _BEATS_S
    out_of_sight = not (view.alive or view.dead_for_s or beats)  # its host is lost
    if not dies or away or not (case.gone(view) or out_of_sight) or again(case):
        return None  # its heartbeat may continue, or it is gone and must not come back
    why = f"every process of {case.group} is gone and its heartbeat has ended with them"
    return _out_of_sight(case) if out_of_sight else Objection(why, _IF_IT_BEATS)


def _out_of_sight(case: Case) -> Objection | None:
    """Nobody is there to evict; its scheduler ends it once it was silent for long."""
    why = f"{case.group} is out of sight, and its heartbeat has ended"
    due_s = case.incident.verdict.since_s + _LOST_AFTER_S
    if not case.lost:
        return Objection(why, _IF_IT_BEATS)
    if case.fleet.now_s >= due_s:
        return None
    return case.objection(why, f"Its scheduler is asked to end it at {utc_moment(due_s)}")


def not_worth_it(case: Case) -> Objection | None:
    """A straggler has cost less so far than an eviction would (ski rental)."""
    incident = case.incident
    price = cost(case.fleet.lessons, len(case.fleet.groups), case.config)
    lost_s = incident.verdict.lost_s
    if incident.kind is not Kind.STRAGGLER or lost_s > price.seconds:
        return None
    measured = f", measured on {price.evictions}" if price.evictions else ""
    return case.objection(
        f"it has cost less than an eviction would ({seconds(price.seconds)}{measured})",
        f"It may be evicted once it has cost more than {seconds(price.seconds)} (eviction_cost_s)",
    )


def wants_person(case: Case) -> Objection | None:
    """The operator wants a person to handle this kind of fault, not an eviction."""
    if case.action is not PolicyAction.PAGE:
        return None
    kind, severity = case.incident.kind, case.incident.severity
    return Objection(
        f"the policy pages for {kind} of severity {severity} and never evicts",
        _said(
            "A person decides",
            case.by_hand,
            f"To let lightkeeper do it: change actions.{kind} in the policy file",
        ),
    )  # fmt: skip


def traced(case: Case) -> Objection | None:
    """Somebody traces one of its ranks: that may be what holds it up."""
    why = "" if case.view is None else case.view.traced
    return case.objection(why, "It may be evicted once they let go") if why else None


def crash_loop(case: Case) -> Objection | None:
    """A fault that stops nobody came back after an eviction: another would not fix it."""
    why = _came_again(case)
    if case.incident.verdict.stops or not why:
        return None
    return case.objection(
        why,
        "A person fixes the program, or it may be evicted after "
        f"{seconds(case.config.crash_loop_memory_s)} without this fault (crash_loop_memory_s)",
    )


def again(case: Case) -> str:
    """Why a group is evicted and kept out: others wait, and its program failed like this before.

    If it were spared, TorchFT's timeout would end the others with it. Empty: no reason.
    """
    return _came_again(case) if case.incident.verdict.stops else ""


def _came_again(case: Case) -> str:
    """How often the program failed at the same place before, in words.

    On other hosts that is the program's fault. On the same host it may be either's, and a restart
    there has not helped. Empty: never, or the place is not known.
    """
    config, incident = case.config, case.incident
    since_s = case.fleet.now_s - config.crash_loop_memory_s
    before = [
        lesson
        for lesson in case.fleet.lessons
        if incident.signature
        and lesson.signature == incident.signature
        and lesson.id != incident.id
        and (lesson.ended_s or 0.0) >= since_s
        and (case.only_observed or teaches(lesson))
    ]
    hosts = set(incident.hosts)  # unknown hosts prove nothing
    elsewhere = [past for past in before if hosts and past.hosts and hosts.isdisjoint(past.hosts)]
    if len(elsewhere) >= config.program_bug_after:
        others = listed(sorted({host for past in elsewhere for host in past.hosts}))
        return f"the same as {_times(elsewhere)} before on {others}: a fault of the program"
    if len(before) >= config.crash_loop_after:
        return f"the same as {_times(before)} before: starting it again does not fix it"
    return ""


def _times(lessons: list[Incident]) -> str:
    return "once" if len(lessons) == 1 else f"{len(lessons)} times"


# -- fleet guards ------------------------------------------------------------------------------
# Guards that look at the monitor, the fleet and the operator: may it be evicted now?
#
# Each returns why not and what would lift it, or None.

HOUR_S: Final = 3600.0


def self_doubt(case: Case) -> Objection | None:
    """The monitor is late, cut off, or cannot write."""
    why = case.fleet.doubt
    if why is None:
        return None
    return case.objection(why, "It may be evicted once the monitor is well again")


def lighthouse_away(case: Case) -> Objection | None:
    """The quorum cannot be seen, and nothing else can judge this fault and confirm an eviction."""
    why = case.fleet.lighthouse_away
    if why is None:
        return None
    missing = case.fleet.without_lighthouse.get(case.incident.id, "")
    if missing is None:
        return None
    return case.objection(
        f"cannot see the quorum: {why}" + (f"; {missing}" if missing else ""),
        "Start the Lighthouse again: it may be evicted once that answers",
    )


def breaker(case: Case) -> Objection | None:
    """Too much of the fleet is accused at once. A group without a live process does not count: that
    is a fact, no accusation. Groups that share a dead host count once. A group for which one that
    is not accused is seen waiting does not count: waiting is evidence.
    """
    fleet = case.fleet
    allowed = max(1, int(len(fleet.groups) * case.config.breaker_share))
    causes = set()
    for group in fleet.accused - fleet.waited_for:
        view = fleet.groups.get(group)
        if view is not None and view.alive:
            dead = hosts_of(fleet, group) & fleet.dead_hosts
            causes.add(min(dead) if dead else group)
    if len(causes) <= allowed:
        return None
    return case.objection(
        f"{len(causes)} of {len(fleet.groups)} groups are accused at once, {allowed} at most",
        "Look at what they have in common: network, storage, a new version. It may be evicted "
        f"when at most {allowed} is accused (breaker_share)",
    )


def min_replicas(case: Case) -> Objection | None:
    """Too few healthy groups would remain; the Lighthouse's own flag counts if it is higher. A lost
    group does not count as healthy, but it may have the job's only state.
    """
    flag = case.fleet.lighthouse_min_replicas or 0
    least = 1 if case.takes_nobody else max(case.config.min_replicas, flag)
    healthy = sum(
        view.healthy or (name in case.tie and len(view.alive) == len(view.hosts))
        for name, view in case.fleet.groups.items()
        if name != case.group
    )
    if healthy >= least:
        return None
    source = "the Lighthouse's own --min_replicas" if flag == least else "min_replicas"
    others = "another group is" if least == 1 else f"{least} other groups are"
    promise = f"It may be evicted once {others} healthy"
    if len(case.fleet.groups) == 1:
        promise = f"{case.group} is the only group: an eviction would end the job"
    return case.objection(
        f"{healthy} healthy groups would remain, at least {least} must ({source})",
        promise,
    )


def in_flight(case: Case) -> Objection | None:
    """Another eviction, with another cause, is still under way."""
    going = case.fleet.in_flight
    if not going or case.takes_nobody or case.goes_with(going):
        return None
    return Objection(
        f"{listed(going)} is being evicted", "Its turn comes when that eviction is over"
    )


def budget(case: Case) -> Objection | None:
    """Too many evictions within the hour; those of lost groups are counted by themselves."""
    if case.lost:
        return _used_up(case, case.past, " of lost groups", "budget_lost", case.config.budget_lost)
    return _used_up(case, case.past, "", "budget_per_hour", case.config.budget_per_hour)


def group_budget(case: Case) -> Objection | None:
    """Too many evictions of this group within the hour."""
    limit = case.config.budget_per_group
    if not limit:
        return None
    own = (eviction for eviction in case.past if eviction.group == case.group)
    return _used_up(case, own, f" of {case.group}", "budget_per_group", limit)


def _used_up(
    case: Case, past: Iterable[Eviction], whose: str, option: str, limit: int
) -> Objection | None:
    now_s = case.fleet.now_s
    alike = (eviction for eviction in past if bool(eviction.lost) is case.lost)
    recent_s = sorted(e.asked_s for e in alike if now_s - e.asked_s < HOUR_S)
    if len(recent_s) < limit:
        return None
    free = "It needs a larger budget"
    if limit:
        free = f"It may be evicted from {utc_moment(recent_s[-limit] + HOUR_S)} on"
    reason = f"{limit} evictions an hour{whose} are used up"
    return case.objection(reason, f"{free} ({option})")


def cool_down(case: Case) -> Objection | None:
    """Too soon after the last eviction, unless both have one cause."""
    wait_s, now_s = case.config.cool_down_s, case.fleet.now_s
    lately = [e for e in case.past if now_s - e.asked_s < wait_s and not e.lost]
    groups = [eviction.group for eviction in lately]
    if not lately or case.takes_nobody or case.goes_with(groups):
        return None
    last_s = max(eviction.asked_s for eviction in lately)
    return case.objection(
        f"the last eviction is less than {seconds(wait_s)} ago",
        f"It may be evicted from {utc_moment(last_s + wait_s)} on (cool_down_s)",
    )


def paused(case: Case) -> Objection | None:
    """A person paused evictions."""
    pause = case.fleet.pause
    if pause is None:
        return None
    ends = "" if pause.until_s is None else f"The pause ends at {utc_moment(pause.until_s)}. "
    return case.objection(
        f"paused by {pause.author} ({pause.reason}): would {case.act}",
        f"{ends}To end it now: lightkeeper resume",
    )


def observe(case: Case) -> Objection | None:
    """The monitor only observes: always, or for this kind of fault."""
    if case.config.observe:
        return Objection(
            f"observe mode: would {case.act}",
            _said(
                "To let lightkeeper evict: start it without --observe, or set [policy] mode = "
                "'act' and reload",
                case.by_hand,
            ),
        )
    if case.action is not PolicyAction.OBSERVE:
        return None
    kind = case.incident.kind
    return Objection(
        f"the policy only observes {kind} of severity {case.incident.severity}: would {case.act}",
        _said(f"To let lightkeeper evict: change actions.{kind} in the policy file", case.by_hand),
    )


# -- deciding ----------------------------------------------------------------------------------

_FOR_THE_FIRST: Final = (Guard.BUDGET, Guard.GROUP_BUDGET, Guard.COOL_DOWN)
GUARDS: Final[tuple[tuple[Guard, Callable[[Case], Objection | None]], ...]] = (
    (Guard.WATCH_ONLY, watch_only),
    (Guard.UNSURE, unsure),
    (Guard.SPARED, spared),
    (Guard.ALREADY_GONE, already_gone),
    (Guard.NOT_WORTH_IT, not_worth_it),
    (Guard.POLICY, wants_person),
    (Guard.CRASH_LOOP, crash_loop),
    (Guard.TRACED, traced),
    (Guard.SELF_DOUBT, self_doubt),
    (Guard.LIGHTHOUSE_AWAY, lighthouse_away),
    (Guard.BREAKER, breaker),
    (Guard.MIN_REPLICAS, min_replicas),
    (Guard.IN_FLIGHT, in_flight),
    (Guard.BUDGET, budget),
    (Guard.GROUP_BUDGET, group_budget),
    (Guard.COOL_DOWN, cool_down),
    (Guard.PAUSED, paused),
    (Guard.OBSERVE, observe),
)


def decide(
    config: KeeperConfig,
    fleet: DecisionFacts,
    incidents: Sequence[Incident],
    policy: Policy = DEFAULT,
) -> tuple[Ruling, ...]:
    """One decision for each given incident that accuses somebody.

    At most one is an eviction, except for groups that share a dead host. `incidents` are firing and
    were seen in this tick. The oldest is decided first.
    """
    decisions: list[Ruling] = []
    for incident in sorted(incidents, key=oldest_first):
        if not incident.groups:
            continue  # nobody is accused, so there is no eviction to hold back
        group = max(incident.verdict.tie, default=incident.groups[0])
        case = Case(config, policy, fleet, incident, group)
        decision = _decide(case)
        decisions.append(decision)
        asked = Eviction(incident.id, case.group, None, fleet.now_s, lost=_lost_hosts(case))
        if isinstance(decision, Eviction):
            going, past = (*fleet.in_flight, case.group), (*fleet.past, asked)
            fleet = replace(fleet, in_flight=going, past=past)
        elif decision.would is not None:
            fleet = replace(fleet, would=(*fleet.would, asked))
    return tuple(decisions)


def _decide(case: Case) -> Ruling:
    incident_id = case.incident.id
    settled = case.only_observed and case.group in case.incident.observed
    guards = GUARDS[-1:] if settled else GUARDS  # an observed eviction is not decided again
    if again(case):  # others wait for a group that keeps failing: its eviction waits for no budget
        guards = tuple(guard for guard in guards if guard[0] not in _FOR_THE_FIRST)
    for guard, speak in guards:
        objection = speak(case)
        if objection is not None:
            would = evict_of(case) if guard is Guard.OBSERVE and not settled else None
            return Hold(incident_id, guard, objection.reason, objection.release, would)
    return evict_of(case)


def evict_of(case: Case) -> Eviction:
    """The eviction if no guard objects."""
    view, incident, verdict = case.view, case.incident, case.incident.verdict
    why = again(case)
    # what an operator can act on comes first: what is broken on the host, if that is known
    broken = f"{verdict.evidence.get('machine', '')}; " if verdict.blamed else ""
    return Eviction(
        incident_id=incident.id,
        group=case.group,
        replica_id=None if view is None else view.replica_id,
        asked_s=case.fleet.now_s,
        decided_s=case.fleet.now_s,
        state=EvictionState.DECIDED,
        taken_up=False,
        quarantine=() if why else _quarantine(case),
        reason=f"{broken}{incident.kind.value}: {verdict.reason}{f'; {why}' if why else ''}",
        keep_out=() if not why or view is None else view.names or (case.group,),
        manner=_manner(case),
        lost=_lost_hosts(case),
    )


def _lost_hosts(case: Case) -> Mapping[Host, bool]:
    """As `Eviction.lost`."""
    view, blames = case.view, case.action is not PolicyAction.EVICT
    if view is None or not case.lost:
        return {}
    return {view.hosts[rank]: blames for rank in case.incident.culprits if rank in view.hosts}


def _manner(case: Case) -> EndManner:
    """Ranks that train come to the end of their step; those that stand abort what is on devices."""
    view, kind = case.view, case.incident.kind
    stands = case.incident.verdict.stops
    gently = not stands or (view is not None and view.kernels)
    return EndManner(
        "abort" if stands else "park",
        case.config.gentle_end_s if gently else 0.0,
        case.policy.grace_s.get(kind, 1.0),
    )


def _quarantine(case: Case) -> tuple[Host, ...]:
    """Hosts to blame, where the policy lets them be quarantined.

    A straggler is evidence against its host; so are a wait in the kernel, what its machine says,
    and a corruption that only one host shows. Any other fault is only if the host had an earlier
    one, of another group or at another place in the program, and not if the same line failed on
    other hosts too. Otherwise the group comes back there, once (`again`).
    """
    view, incident = case.view, case.incident
    taken = TAKEN in incident.verdict.evidence
    if view is None or taken or case.action is PolicyAction.EVICT:
        return ()
    hosts = sorted({view.hosts[rank] for rank in incident.culprits if rank in view.hosts})
    match incident.kind:
        case Kind.STRAGGLER | Kind.MISMATCH | Kind.DEADLOCK | Kind.REPLICA_LAG:
            return tuple(hosts)  # all but the first are the program's, unless the operator says so
        case Kind.STATE_CORRUPT:  # any rank of its group may be the culprit: no host
            return tuple(hosts) if len(hosts) == 1 else ()
        case _:
            bad = {view.hosts[r] for r in view.disk_wait if r in incident.culprits}
            bad |= {*incident.verdict.blamed}
            if incident.kind is Kind.NOT_ENTERED:  # no rank on it can be seen
                bad |= case.fleet.dead_hosts
            elsewhere = _elsewhere(case)
            return tuple(h for h in hosts if h in bad or (not elsewhere and _before(case, h)))


def _elsewhere(case: Case) -> bool:
    """True if the same line of the program failed on two other hosts: it is the program then."""
    signature, hosts = case.incident.signature, case.incident.hosts
    elsewhere = [
        host
        for host, past in case.fleet.faults.items()
        if host not in hosts
        and any(before.signature == signature and not before.verdict.blamed for before in past)
    ]
    return bool(signature) and len(elsewhere) > 1


def _before(case: Case, host: Host) -> bool:
    """True if this host had a fault of another group, or at another place in the program."""
    now = case.incident
    return any(
        before.groups[0] != case.group
        or before.signature != now.signature
        or (before.kind is now.kind is Kind.DEAD and not now.signature)
        for before in case.fleet.faults.get(host, ())
        if TAKEN not in before.verdict.evidence
    )
