"""The fleet and its Lighthouse: who is how well, how far, in which quorum."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.metrics.definition import GROUP, counter, gauge
from monitor.metrics.scene import Scene
from monitor.model.names import group_of_replica
from monitor.model.observation import LighthouseAway, LighthouseView
from monitor.model.verdict import RankHealth

_JOBS_TOLD: Final = 16
"""One Lighthouse serves one job; what ranks call theirs is still their word."""
_NO_LIGHTHOUSE: Final = "while the Lighthouse is away"
_NO_STEPS: Final = "no rank of the group answers, or none reports steps"

STATES: Final = {
    "healthy": 0, "waiting": 1, "starting": 2, "stalled": 3, "unreachable": 4, "dead": 5,
    "evicting": 6, "late": 7, "slow": 8, "corrupt": 9, "traced": 10,
}  # fmt: skip
"""Health of a group -> value of `lightkeeper_group_state`."""

JOB_INFO = gauge(
    "job_info", "1, with the job's id as its ranks tell it.", ("job_id",), absent="no rank",
)  # fmt: skip
RANKS = gauge("ranks", "Registered ranks, by health.", ("health",), series="10")
GROUPS = gauge(
    "groups", "Replica groups, by the health of their worst rank.", ("health",),
    series="at most 11", absent="healths that no group has",
)  # fmt: skip
STATE = gauge(
    "group_state",
    "Health of the group's worst rank: 0 healthy, 1 waiting, 2 starting, 3 stalled, "
    "4 unreachable, 5 dead, 7 late, 8 slow, 9 corrupt, 10 traced; 6 while the group is being "
    "evicted.",
    GROUP, series="G", absent="only the Lighthouse knows the group",
)  # fmt: skip
STEP = gauge("group_step", "Step that the group works on.", GROUP, series="G", absent=_NO_STEPS)
COMMITS = counter(
    "group_commits", "Steps committed by the group's present processes.", GROUP,
    series="G", absent=_NO_STEPS,
)  # fmt: skip
TOKENS = counter(
    "group_tokens",
    "Tokens that the group's ranks trained on since this monitor looks, as they report them, "
    "added up.",
    GROUP, series="G", absent="no rank of the group reports tokens",
)  # fmt: skip
IN_QUORUM = gauge(
    "group_in_quorum", "1 while the group is a member of the last quorum.", GROUP,
    series="G", absent=_NO_LIGHTHOUSE,
)  # fmt: skip
LAST_HEARTBEAT = gauge(
    "group_last_heartbeat_timestamp_seconds",
    "Unix time of the group's last heartbeat to the Lighthouse.",
    GROUP, series="G", absent=_NO_LIGHTHOUSE,
)  # fmt: skip
RESTARTS = counter("lighthouse_restarts", "Restarts of the Lighthouse seen by this monitor.")
QUORUM_CHANGES = counter("quorum_changes", "Quorums formed since this monitor looks.")
READ = gauge(
    "lighthouse_read_timestamp_seconds", "Unix time at which the Lighthouse's page was last read.",
    absent="it was never read",
)  # fmt: skip
UP = gauge("lighthouse_up", "1 while the Lighthouse's page can be read.")
QUORUM_ID = gauge("quorum_id", "Id of the last quorum.", absent=_NO_LIGHTHOUSE)
PARTICIPANTS = gauge("quorum_participants", "Members of the last quorum.", absent=_NO_LIGHTHOUSE)
FORMED = gauge(
    "quorum_formed_timestamp_seconds",
    "Unix time at which this monitor first saw the last quorum: it is at least so old.",
    absent="no quorum was seen yet",
)  # fmt: skip
MEMBER_HEARTBEAT_AGE = gauge(
    "member_heartbeat_age_seconds",
    "Age of the last heartbeat of each member of the last quorum, as the Lighthouse says.",
    GROUP, series="G", absent=_NO_LIGHTHOUSE,
)  # fmt: skip

DEFINITIONS: Final = (
    JOB_INFO, RANKS, GROUPS, STATE, STEP, COMMITS, TOKENS, IN_QUORUM, LAST_HEARTBEAT, RESTARTS,
    QUORUM_CHANGES, READ, UP, QUORUM_ID, PARTICIPANTS, FORMED, MEMBER_HEARTBEAT_AGE,
)  # fmt: skip


def export(scene: Scene) -> Iterator[Metric]:
    """Everything of this file."""
    yield from _ranks(scene)
    yield from _groups(scene)
    yield from _lighthouse(scene)


def _ranks(scene: Scene) -> Iterator[Metric]:
    view = scene.view
    jobs = sorted({seen.identity.job for seen in view.snapshot.observations})[:_JOBS_TOLD]
    yield JOB_INFO.each((job, 1) for job in jobs)
    tally = Tally(view.result.rank_health.values())
    yield RANKS.each((health, tally[health]) for health in RankHealth)


def _groups(scene: Scene) -> Iterator[Metric]:
    """How well each is, and how far."""
    told, view = scene.told_groups, scene.view
    yield GROUPS.each(sorted(Tally(one.health for one in view.groups).items()))
    yield STATE.each((one.group, STATES.get(one.shown)) for one in told)
    yield STEP.each((one.group, one.step) for one in told)
    yield COMMITS.each((one.group, one.commits) for one in told)
    yield TOKENS.each((one.group, view.tokens.get(one.group)) for one in told)
    yield IN_QUORUM.each((one.group, one.in_quorum) for one in told)
    yield LAST_HEARTBEAT.each(
        (one.group, view.snapshot.now_s - one.heartbeat_age_s)
        for one in told
        if one.heartbeat_age_s is not None
    )


def _lighthouse(scene: Scene) -> Iterator[Metric]:
    """Whether it answers, and its quorum."""
    page, record = scene.view.snapshot.lighthouse, scene.view.lighthouse
    yield RESTARTS.value(record.restarts)
    yield QUORUM_CHANGES.value(record.quorum_changes)
    if record.view_s is not None:
        yield READ.value(record.view_s)
    if record.formed_s is not None:
        yield FORMED.value(record.formed_s)
    yield UP.value(0.0 if isinstance(page, LighthouseAway) else 1.0)
    if isinstance(page, LighthouseView):
        yield QUORUM_ID.value(page.quorum_id)
        yield PARTICIPANTS.value(len(page.members))
        yield MEMBER_HEARTBEAT_AGE.each(_beats(scene, page))


def _beats(scene: Scene, view: LighthouseView) -> list[tuple[str, float]]:
    """Members only: the Lighthouse remembers every id that ever beat. The oldest of each group."""
    ages_s: dict[str, float] = {}
    for member in view.members:
        group = group_of_replica(member.replica_id)
        age_s = view.heartbeat_ages_s.get(member.replica_id)
        if age_s is not None and group in scene.told_names:
            ages_s[group] = max(age_s, ages_s.get(group, 0.0))
    return sorted(ages_s.items())
