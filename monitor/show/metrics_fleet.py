"""The fleet: health and progress, who holds it back, what recoveries take."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from statistics import median
from typing import Final

from prometheus_client.core import Metric

from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import GroupName, group_of, split_rank_name
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.exposition import ALONE, GROUP, RANK, ScrapeView, counter, gauge
from lightkeeper.worker_server.wire import StepState, Took

_JOBS_TOLD: Final = 16
"""One Lighthouse serves one job, but ranks may report any job name."""
_NO_ANSWER: Final = "while no Lighthouse answers"
_NO_STEPS: Final = "no rank of the group answers, or none reports steps"

STATES: Final = {
    "healthy": 0, "waiting": 1, "starting": 2, "stalled": 3, "unreachable": 4, "dead": 5,
    "evicting": 6, "late": 7, "slow": 8, "corrupt": 9, "traced": 10,
    "finished": 11, "ended": 12,
}  # fmt: skip
"""Health of a group -> value of `lightkeeper_group_state`."""

JOB_INFO = gauge(
    "job_info", "1, with the job's id as its ranks report it.", ("job_id",), absent="no rank",
)  # fmt: skip
RANKS = gauge("ranks", "Registered ranks, by health.", ("health",), series="12")
GROUPS = gauge(
    "groups", "Replica groups, by the health of their worst rank.", ("health",),
    series="at most 13", absent="healths that no group has",
)  # fmt: skip
STATE = gauge(
    "group_state",
    "Health of the group's worst rank: 0 healthy, 1 waiting, 2 starting, 3 stalled, "
    "4 unreachable, 5 dead, 7 late, 8 slow, 9 corrupt, 10 traced, 11 finished, 12 ended; "
    "6 on its way out.",
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
    series="G", absent=_NO_ANSWER,
)  # fmt: skip
LAST_HEARTBEAT = gauge(
    "group_last_heartbeat_timestamp_seconds",
    "Unix time of the group's last heartbeat to the Lighthouse.",
    GROUP, series="G", absent=_NO_ANSWER,
)  # fmt: skip
RESTARTS = counter(
    "lighthouse_restarts", "Restarts of the Lighthouse seen by this monitor.", absent=ALONE,
)  # fmt: skip
QUORUM_CHANGES = counter(
    "quorum_changes", "Quorums formed since this monitor looks.", absent=ALONE,
)  # fmt: skip
READ = gauge(
    "lighthouse_read_timestamp_seconds", "Unix time at which the Lighthouse's page was last read.",
    absent="it was never read",
)  # fmt: skip
UP = gauge("lighthouse_up", "1 while the Lighthouse's page can be read.", absent=ALONE)
QUORUM_ID = gauge("quorum_id", "Id of the last quorum.", absent=_NO_ANSWER)
PARTICIPANTS = gauge("quorum_participants", "Members of the last quorum.", absent=_NO_ANSWER)
FORMED = gauge(
    "quorum_formed_timestamp_seconds",
    "Unix time at which this monitor first saw the last quorum: it is at least so old.",
    absent="no quorum was seen yet",
)  # fmt: skip


def _ranks(scene: ScrapeView) -> Iterator[Metric]:
    view = scene.view
    jobs = sorted({seen.identity.job for seen in view.snapshot.observations})[:_JOBS_TOLD]
    yield JOB_INFO.each((job, 1) for job in jobs)
    tally = Tally(view.result.rank_health.values())
    yield RANKS.each((health, tally[health]) for health in RankHealth)


def _groups(scene: ScrapeView) -> Iterator[Metric]:
    groups, view = scene.exported_groups, scene.view
    yield GROUPS.each(sorted(Tally(group.health for group in view.groups).items()))
    yield STATE.each((group.group, STATES.get(group.shown)) for group in groups)
    yield STEP.each((group.group, group.step) for group in groups)
    yield COMMITS.each((group.group, group.commits) for group in groups)
    yield TOKENS.each((group.group, view.tokens.get(group.group)) for group in groups)
    yield IN_QUORUM.each((group.group, group.in_quorum) for group in groups)
    yield LAST_HEARTBEAT.each(
        (group.group, view.snapshot.now_s - group.heartbeat_age_s)
        for group in groups
        if group.heartbeat_age_s is not None
    )


def _lighthouse(scene: ScrapeView) -> Iterator[Metric]:
    page, record = scene.view.snapshot.lighthouse, scene.view.lighthouse
    if scene.view.alone:
        return
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


# -- Who holds the fleet back: how long each works and waits in a step, and by how much it differs -

_NO_TEMPO: Final = "who committed nothing within the last 15 s"
_NOBODY: Final = "no rank committed within the last 15 s"

RANK_BUSY = gauge(
    "rank_busy_seconds",
    "Mean seconds a step in which the rank did not wait for others, last window.",
    RANK, series="R", absent=_NO_TEMPO,
)  # fmt: skip
RANK_WAIT = gauge(
    "rank_wait_seconds",
    "Mean seconds a step in which the rank waited for others, last window.",
    RANK, series="R", absent=_NO_TEMPO,
)  # fmt: skip
FLEET_BUSY = gauge(
    "fleet_busy_seconds",
    "Seconds a step in which ranks did not wait, over all ranks: min, median, p99 and max.",
    ("stat",), series="4", absent=_NOBODY,
)  # fmt: skip
GROUP_BUSY = gauge(
    "group_busy_seconds", "Seconds a step that the longest working rank of the group worked.",
    GROUP, series="G", absent=_NO_TEMPO,
)  # fmt: skip
GROUP_WAIT = gauge(
    "group_wait_seconds", "Seconds a step that the ranks of the group waited, their median.",
    GROUP, series="G", absent=_NO_TEMPO,
)  # fmt: skip


def _stragglers(scene: ScrapeView) -> Iterator[Metric]:
    tempos = scene.view.tempos
    named = [(tuple(map(str, split_rank_name(rank))), tempos[rank]) for rank in scene.busy]
    yield RANK_BUSY.rows([(labels, tempo.busy_s) for labels, tempo in named])
    yield RANK_WAIT.rows([(labels, tempo.wait_s) for labels, tempo in named])
    busy = sorted(tempo.busy_s for tempo in tempos.values())
    if busy:
        p99_s = busy[-(-99 * len(busy) // 100) - 1]  # one rank's value, the next above
        stats = {"min": busy[0], "median": median(busy), "p99": p99_s, "max": busy[-1]}
    yield FLEET_BUSY.each(stats.items() if busy else ())
    members = grouped((group_of(rank), tempo) for rank, tempo in tempos.items())
    names = [group.group for group in scene.exported_groups if group.group in members]
    yield GROUP_BUSY.each((name, max(tempo.busy_s for tempo in members[name])) for name in names)
    yield GROUP_WAIT.each((name, median(tempo.wait_s for tempo in members[name])) for name in names)


# -- What recoveries take, by replica group, as its ranks report it -------------------------------
# Ranks of a group work at the same time: seconds are those of the slowest, bytes are added up. What
# was not done yet, or is not known, is left out. Only the groups' present processes count: full
# distributions are on the ranks' own pages (`lightkeeper_rank_checkpoint_load_seconds` ...).

_NOT_YET: Final = "the group did not do it yet, or is not TorchFT"

FAILURES = counter(
    "group_commit_failures",
    "Attempts of the group's present processes that ended without a commit.",
    GROUP, series="G", absent="no rank of the group answers, or none reports steps",
)  # fmt: skip
HEALS = counter(
    "group_heals", "States of other groups that the group's present processes took over.", GROUP,
    series="G", absent=_NOT_YET,
)  # fmt: skip
LAST: Final = {
    part: gauge(f"group_last_{name}_seconds", f"Seconds in which the group last {did}.", GROUP,
                series="G", absent=_NOT_YET)
    for part, name, did in (
        ("staging", "checkpoint_staging", "made a checkpoint ready for another group"),
        ("load", "checkpoint_load", "loaded a checkpoint from another group"),
        ("apply", "checkpoint_apply", "took over what it had loaded"),
        ("reconfigure", "reconfigure", "built the process groups of a new quorum"),
    )
}  # fmt: skip
"""By the part of a recovery that a rank times."""
LOADED = gauge(
    "group_last_checkpoint_load_bytes",
    "Bytes of the checkpoint that the group last loaded, all its ranks together.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip


def _recovery(scene: ScrapeView) -> Iterator[Metric]:
    """Heals, attempts without a commit, and how long each part took last."""
    groups = _steps(scene)
    yield FAILURES.each((g, max(step.commit_failures for step in s)) for g, s in groups.items())
    torchft = {group: steps for group, steps in groups.items() if any(s.times for s in steps)}
    yield HEALS.each((g, max(_took(step, "apply").done for step in s)) for g, s in torchft.items())
    for part, definition in LAST.items():
        yield definition.each(
            (group, max(_took(step, part).last_s for step in steps))
            for group, steps in torchft.items()
            if any(part in step.times for step in steps)
        )
    loaded = ((g, sum(_took(step, "load").last_bytes for step in s)) for g, s in torchft.items())
    yield LOADED.each((group, nbytes or None) for group, nbytes in loaded)


def _steps(scene: ScrapeView) -> dict[GroupName, list[StepState]]:
    """What the ranks of each group report, sorted by group."""
    seen = scene.view.snapshot.observations
    steps = grouped((rank.identity.group, rank.step) for rank in seen if rank.step is not None)
    names = (group.group for group in scene.exported_groups)
    return {name: steps[name] for name in names if name in steps}


def _took(step: StepState, part: str) -> Took:
    return step.times.get(part, Took(0))


# -- all of this file -----------------------------------------------------------------------------


def export(scene: ScrapeView) -> Iterator[Metric]:
    for family in (_ranks, _groups, _lighthouse, _stragglers, _recovery):
        yield from family(scene)
