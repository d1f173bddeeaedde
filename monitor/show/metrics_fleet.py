"""The fleet: health and progress, who holds it back, what recoveries take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Final

from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import GroupView
from lightkeeper.monitor.metric import (
    ALONE,
    FLEET,
    GROUP,
    RANK,
    RECOVERY,
    STRAGGLERS,
    Metrics,
    Values,
)
from lightkeeper.monitor.model.names import split_rank_name
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.exposition import ScrapeView
from lightkeeper.worker_server.wire import Took, Weight

_JOBS_TOLD: Final = 16
"""One Lighthouse serves one job, but ranks may report any job name."""
_TESTIMONIES_MOST: Final = 200
_NO_ANSWER: Final = "while no Lighthouse answers"
_NO_STEPS: Final = "no rank of the group answers, or none reports steps"
_NO_TEMPO: Final = "who committed nothing within the last 15 s"
_NOT_YET: Final = "the group did not do it yet, or is not TorchFT"

STATES: Final = {
    "healthy": 0, "waiting": 1, "starting": 2, "stalled": 3, "unreachable": 4, "dead": 5,
    "evicting": 6, "late": 7, "slow": 8, "corrupt": 9, "traced": 10,
    "finished": 11, "ended": 12,
}  # fmt: skip
"""Health of a group -> value of `lightkeeper_group_state`."""

Fill = Callable[[ScrapeView], Values]


def _jobs(scene: ScrapeView) -> Values:
    jobs = {seen.identity.job for seen in scene.view.snapshot.observations}
    return dict.fromkeys(sorted(jobs)[:_JOBS_TOLD], 1)


def _by_health(scene: ScrapeView) -> Values:
    tally = Counter(scene.view.result.rank_health.values())
    return {health: tally[health] for health in RankHealth}


def _groups(of: Callable[[GroupView, ScrapeView], float | None]) -> Fill:
    return lambda scene: [(group.group, of(group, scene)) for group in scene.exported_groups]


def _last_heartbeat(group: GroupView, scene: ScrapeView) -> float | None:
    age_s = group.heartbeat_age_s
    return None if age_s is None else scene.view.snapshot.now_s - age_s


def _testimonies(scene: ScrapeView) -> Values:
    now_s = scene.view.snapshot.now_s
    rows = [
        ((host, row.witness, row.code, row.weight), now_s - row.for_s)
        for host, said in sorted(scene.view.snapshot.machines.items())
        for row in said
        if row.weight in (Weight.BROKEN, Weight.LEAVING, Weight.SLOW)
    ]
    return dict(rows[:_TESTIMONIES_MOST]) or None


def _lighthouse(of: Callable[[LighthouseView], float]) -> Fill:
    """Of its page, while that can be read."""

    def fill(scene: ScrapeView) -> Values:
        page = scene.view.snapshot.lighthouse
        return of(page) if isinstance(page, LighthouseView) else None

    return fill


def _record(of: Callable[[ScrapeView], float | None]) -> Fill:
    return lambda scene: None if scene.view.alone else of(scene)


# Who holds the fleet back: how long each works and waits in a step, and by how much it differs.


def _ranks(of: Callable[[Tempo], float]) -> Fill:
    return lambda scene: [(split_rank_name(r), of(scene.view.tempos[r])) for r in scene.busy]


def _spread(scene: ScrapeView) -> Values:
    busy = sorted(tempo.busy_s for tempo in scene.view.tempos.values())
    if not busy:
        return {}
    p99_s = busy[-(-99 * len(busy) // 100) - 1]  # one rank's value, the next above
    return {"min": busy[0], "median": median(busy), "p99": p99_s, "max": busy[-1]}


# What recoveries take, by replica group, as its ranks report it. They work at the same time:
# seconds are those of the slowest, bytes are added up. What was not done yet, or is not known, is
# left out. Only the groups' present processes count: full distributions are on the ranks' own pages
# (`lightkeeper_rank_checkpoint_load_seconds` ...).


def _torchft(of: Callable[[list[Mapping[str, Took]]], float | None]) -> Fill:
    """Of the groups whose ranks time their recoveries."""

    def fill(scene: ScrapeView) -> Values:
        times = {group: [step.times for step in steps] for group, steps in scene.steps.items()}
        return [(group, of(each)) for group, each in times.items() if any(each)]

    return fill


def _last_s(part: str) -> Fill:
    return _torchft(lambda times: max((t[part].last_s for t in times if part in t), default=None))


METRICS: Final[Metrics] = (
    FLEET.gauge("job_info", "1, with the job's id as its ranks report it.", ("job_id",), _jobs,
        series="1", absent="no rank"),
    FLEET.gauge("ranks", "Registered ranks, by health.", ("health",), _by_health, series="12"),
    FLEET.gauge("groups", "Replica groups, by the health of their worst rank.", ("health",),
        lambda scene: dict(sorted(Counter(g.health for g in scene.view.groups).items())),
        series="at most 13", absent="healths that no group has"),
    FLEET.gauge("group_state", "Health of the group's worst rank: 0 healthy, 1 waiting, 2 "
        "starting, 3 stalled, 4 unreachable, 5 dead, 7 late, 8 slow, 9 corrupt, 10 traced, 11 "
        "finished, 12 ended; 6 on its way out.", GROUP,
        _groups(lambda group, _: STATES.get(group.shown)),
        absent="only the Lighthouse knows the group"),
    FLEET.gauge("group_step", "Step that the group works on.", GROUP,
        _groups(lambda group, _: group.step), absent=_NO_STEPS),
    FLEET.counter("group_commits", "Steps committed by the group's present processes.", GROUP,
        _groups(lambda group, _: group.commits), absent=_NO_STEPS),
    FLEET.counter("group_tokens", "Tokens that the group's ranks trained on since this monitor "
        "looks, as they report them, added up.", GROUP,
        _groups(lambda group, scene: scene.view.tokens.get(group.group)),
        absent="no rank of the group reports tokens"),
    FLEET.gauge("group_in_quorum", "1 while the group is a member of the last quorum.", GROUP,
        _groups(lambda group, _: group.in_quorum), absent=_NO_ANSWER),
    FLEET.gauge("group_last_heartbeat_timestamp_seconds",
        "Unix time of the group's last heartbeat to the Lighthouse.", GROUP,
        _groups(_last_heartbeat), absent=_NO_ANSWER),
    FLEET.counter("lighthouse_restarts", "Restarts of the Lighthouse seen by this monitor.", (),
        _record(lambda scene: scene.view.lighthouse.restarts), absent=ALONE),
    FLEET.counter("quorum_changes", "Quorums formed since this monitor looks.", (),
        _record(lambda scene: scene.view.lighthouse.quorum_changes), absent=ALONE),
    FLEET.gauge("host_testimony_since_timestamp_seconds",
        "Unix time since which a host's own witnesses or the cluster say this of it: broken, "
        "leaving or slow. Mere context is left out.", ("host", "witness", "code", "weight"),
        _testimonies, series=f"at most {_TESTIMONIES_MOST}", absent="nothing is said of any host"),
    FLEET.gauge("lighthouse_read_timestamp_seconds",
        "Unix time at which the Lighthouse's page was last read.", (),
        _record(lambda scene: scene.view.lighthouse.view_s), absent="it was never read"),
    FLEET.gauge("lighthouse_up", "1 while the Lighthouse's page can be read.", (),
        _record(lambda scene: not isinstance(scene.view.snapshot.lighthouse, LighthouseAway)),
        absent=ALONE),
    FLEET.gauge("quorum_id", "Id of the last quorum.", (), _lighthouse(lambda page: page.quorum_id),
        absent=_NO_ANSWER),
    FLEET.gauge("quorum_participants", "Members of the last quorum.", (),
        _lighthouse(lambda page: len(page.members)), absent=_NO_ANSWER),
    FLEET.gauge("quorum_formed_timestamp_seconds",
        "Unix time at which this monitor first saw the last quorum: it is at least so old.", (),
        _record(lambda scene: scene.view.lighthouse.formed_s), absent="no quorum was seen yet"),
    STRAGGLERS.gauge("rank_busy_seconds",
        "Mean seconds a step in which the rank did not wait for others, last window.", RANK,
        _ranks(lambda tempo: tempo.busy_s), absent=_NO_TEMPO),
    STRAGGLERS.gauge("rank_wait_seconds",
        "Mean seconds a step in which the rank waited for others, last window.", RANK,
        _ranks(lambda tempo: tempo.wait_s), absent=_NO_TEMPO),
    STRAGGLERS.gauge("fleet_busy_seconds",
        "Seconds a step in which ranks did not wait, over all ranks: min, median, p99 and max.",
        ("stat",), _spread, series="4", absent="no rank committed within the last 15 s"),
    STRAGGLERS.gauge("group_busy_seconds",
        "Seconds a step that the longest working rank of the group worked.", GROUP,
        lambda scene: {g: max(t.busy_s for t in each) for g, each in scene.tempos.items()},
        absent=_NO_TEMPO),
    STRAGGLERS.gauge("group_wait_seconds",
        "Seconds a step that the ranks of the group waited, their median.", GROUP,
        lambda scene: {g: median(t.wait_s for t in each) for g, each in scene.tempos.items()},
        absent=_NO_TEMPO),
    RECOVERY.counter("group_commit_failures",
        "Attempts of the group's present processes that ended without a commit.", GROUP,
        lambda scene: {g: max(s.commit_failures for s in each) for g, each in scene.steps.items()},
        absent=_NO_STEPS),
    RECOVERY.counter("group_heals",
        "States of other groups that the group's present processes took over.", GROUP,
        _torchft(lambda times: max(t["apply"].done if "apply" in t else 0 for t in times)),
        absent=_NOT_YET),
    *(
        RECOVERY.gauge(
            f"group_last_{name}_seconds", f"Seconds in which the group last {did}.", GROUP,
            _last_s(part), absent=_NOT_YET,
        )
        for part, name, did in (
            ("staging", "checkpoint_staging", "made a checkpoint ready for another group"),
            ("load", "checkpoint_load", "loaded a checkpoint from another group"),
            ("apply", "checkpoint_apply", "took over what it had loaded"),
            ("reconfigure", "reconfigure", "built the process groups of a new quorum"),
        )
    ),
    RECOVERY.gauge("group_last_checkpoint_load_bytes",
        "Bytes of the checkpoint that the group last loaded, all its ranks together.", GROUP,
        _torchft(lambda times: sum(t["load"].last_bytes for t in times if "load" in t) or None),
        absent=_NOT_YET),
)  # fmt: skip
