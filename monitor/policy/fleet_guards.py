"""Guards that look at the monitor, the fleet and the operator: may an eviction be done now?

Each says why not and what would lift that, or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from monitor.detectors.wording import listed, seconds
from monitor.policy.case import Case, Objection, hosts_of
from monitor.policy.facts import PastEviction
from monitor.policy.rules import Action
from monitor.policy.windows import moment
from monitor.snapshot import NO_LIGHTHOUSE

HOUR_S: Final = 3600.0


def self_doubt(case: Case) -> Objection | None:
    """The monitor is late, cut off, or cannot write."""
    why = case.fleet.doubt
    return (
        None
        if why is None
        else Objection(why, f"It goes on by itself once the monitor is well again. {case.by_hand}")
    )


def lighthouse_away(case: Case) -> Objection | None:
    """Nobody sees the quorum, and nothing else can judge this fault and confirm its eviction."""
    why = case.fleet.lighthouse_away
    if why is None:
        return None
    told = case.fleet.without_lighthouse.get(case.incident.id, "")
    if told is None:
        return None
    if why == NO_LIGHTHOUSE:
        return Objection(
            "this job has no Lighthouse, so no other group would go on without it",
            "Stop the job, or the rank, by its scheduler. With TorchFT, tell the monitor of the "
            "Lighthouse: --lighthouse URL.",
        )
    return Objection(
        f"cannot see the quorum: {why}" + (f"; {told}" if told else ""),
        "Start the Lighthouse again: it goes on by itself once it answers.",
    )


def breaker(case: Case) -> Objection | None:
    """Too much of the fleet is accused at once. Groups of which no process lives are gone, which
    is a fact and no accusation; groups that share a dead host have one cause. Nor does a group
    count for which one that nobody accuses is seen waiting: waiting is evidence, numbers are none.
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
    return Objection(
        f"{len(causes)} of {len(fleet.groups)} groups are accused at once, {allowed} at most",
        "Look at what they have in common: network, storage, a new version. It goes on by itself "
        f"when at most {allowed} is accused (breaker_share). {case.by_hand}",
    )


def min_replicas(case: Case) -> Objection | None:
    """Too few healthy groups would be left; the Lighthouse's own flag counts where it is higher."""
    told = case.fleet.min_replicas_told or 0
    least = max(case.config.min_replicas, told)
    left = sum(view.healthy for name, view in case.fleet.groups.items() if name != case.group)
    if left >= least:
        return None
    source = "the Lighthouse's own --min_replicas" if told == least else "min_replicas"
    return Objection(
        f"{left} healthy groups would remain, at least {least} must ({source})",
        f"It is evicted once {least} other groups are healthy. {case.by_hand}",
    )


def in_flight(case: Case) -> Objection | None:
    """Another eviction is still under way, and neither a dead host is common to both nor a stand:
    who waits for two waits for the second when the first is gone, and no quorum forms before.
    """
    going = case.fleet.in_flight
    if not going or case.shares_dead_host(going) or case.shares_stand(going):
        return None
    return Objection(
        f"{listed(going)} is being evicted", "Its turn comes when that eviction is over."
    )


def budget(case: Case) -> Objection | None:
    """Too many evictions within the hour."""
    recent = _recent(case, case.past)
    limit = case.config.budget_per_hour
    if len(recent) < limit:
        return None
    return Objection(
        f"{limit} evictions an hour are used up",
        f"{_free(recent, limit)} (budget_per_hour). {case.by_hand}",
    )


def group_budget(case: Case) -> Objection | None:
    """Too many evictions of this very group within the hour."""
    recent = _recent(case, (one for one in case.past if one.group == case.group))
    limit = case.config.budget_per_group
    if not limit or len(recent) < limit:
        return None
    return Objection(
        f"{limit} evictions an hour of {case.group} are used up",
        f"{_free(recent, limit)} (budget_per_group). {case.by_hand}",
    )


def _recent(case: Case, past: Iterable[PastEviction]) -> list[PastEviction]:
    found = [one for one in past if case.fleet.now_s - one.asked_s < HOUR_S]
    return sorted(found, key=lambda one: one.asked_s)


def _free(recent: list[PastEviction], limit: int) -> str:
    """When there is room again."""
    if limit == 0:
        return "It needs a larger budget"
    return f"It goes on at {moment(recent[-limit].asked_s + HOUR_S)}"


def cool_down(case: Case) -> Objection | None:
    """Too soon after the last one, unless a dead host, or a stand, is common to both."""
    wait_s, now_s = case.config.cool_down_s, case.fleet.now_s
    lately = [one for one in case.past if now_s - one.asked_s < wait_s]
    groups = [one.group for one in lately]
    if not lately or case.shares_dead_host(groups) or case.shares_stand(groups):
        return None
    last_s = max(one.asked_s for one in lately)
    return Objection(
        f"the last eviction is less than {seconds(wait_s)} ago",
        f"It goes on at {moment(last_s + wait_s)} (cool_down_s). {case.by_hand}",
    )


def maintenance(case: Case) -> Objection | None:
    """The policy names this time as one of maintenance."""
    found = case.policy.window(case.fleet.now_s)
    if found is None:
        return None
    window, until_s = found
    return Objection(
        f"maintenance window '{window.name}': would evict {case.group}",
        f"It goes on when the window ends, at {moment(until_s)}. {case.by_hand}",
    )


def paused(case: Case) -> Objection | None:
    """A person pressed the big red switch."""
    pause = case.fleet.pause
    if pause is None:
        return None
    ends = "" if pause.until_s is None else f"It goes on at {moment(pause.until_s)}. "
    return Objection(
        f"paused by {pause.author} ({pause.reason}): would evict {case.group}",
        f"{ends}To let it go on now: lightkeeper resume. {case.by_hand}",
    )


def observe(case: Case) -> Objection | None:
    """The monitor was told to change nothing, or not for this kind of fault."""
    if case.config.observe:
        return Objection(
            f"observe mode: would evict {case.group}",
            "To let lightkeeper evict: start it without --observe, or set [policy] mode = 'act' "
            f"and reload. {case.by_hand}",
        )
    if case.action is not Action.OBSERVE:
        return None
    kind = case.incident.kind
    return Objection(
        f"the policy only observes {kind} of severity {case.incident.severity}: "
        f"would evict {case.group}",
        f"To let lightkeeper evict: change actions.{kind} in the policy file. {case.by_hand}",
    )
