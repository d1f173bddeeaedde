"""The monitor's `/metrics`: read from the latest view at each scrape, or counted as it happens.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text; series by rank, group, host or incident are bounded (`Bounds`, `*_TOLD`): a job may have
100,000 ranks, one page should not. Exported first are suspects of open incidents, then the unwell,
then the ranks that work longest and the groups first by name. Aggregates (`lightkeeper_ranks`,
`fleet_busy_seconds` ...) always cover all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lightkeeper.gate.denylist import DenialScope, GateView
from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.decide.headline import Headline, JobState, headline_of
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import GroupView, View
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.metric import (
    ALONE,
    EVICTIONS,
    FLEET,
    GATE,
    GOODPUT,
    GROUP,
    HEALTH,
    INCIDENTS,
    KEPT,
    RANK,
    RECOVERY,
    STRAGGLERS,
    Metrics,
    Values,
)
from lightkeeper.monitor.model.eviction import Eviction, Guard, Hold, rulings
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, Host, RankName, group_of, split_rank_name
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import FAULTS, OF_LIGHTHOUSE, RankHealth
from lightkeeper.worker_server.wire import StepState, Took, Weight

T = TypeVar("T")
RANK_SERIES: Final = 4096
GROUP_SERIES: Final = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most ranks and groups with their own series on the page; 0: none."""

    ranks: int = RANK_SERIES
    groups: int = GROUP_SERIES


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class ScrapeView:
    """A view as the exporters read it."""

    view: View
    bounds: Bounds = Bounds()
    url: str = ""
    """Where browsers reach this monitor."""

    @cached_property
    def headline(self) -> Headline:
        return headline_of(self.view)

    @cached_property
    def exported_groups(self) -> tuple[GroupView, ...]:
        accused = {group for incident in self.view.opened for group in incident.groups}
        worst = nsmallest(
            self.bounds.groups, self.view.groups,
            lambda group: (group.group not in accused, group.health == RankHealth.HEALTHY,
                           group.group),
        )  # fmt: skip
        return tuple(sorted(worst, key=lambda group: group.group))

    @cached_property
    def busy(self) -> tuple[RankName, ...]:
        """Ranks with a known tempo and their own series, sorted."""
        tempos, healths = self.view.tempos, self.view.result.rank_health
        suspects = self.suspects
        worst = nsmallest(
            self.bounds.ranks, tempos,
            lambda rank: (rank not in suspects, healths.get(rank) is RankHealth.HEALTHY,
                          -tempos[rank].busy_s, rank),
        )  # fmt: skip
        return tuple(sorted(worst))

    @cached_property
    def suspects(self) -> frozenset[RankName]:
        return frozenset(rank for incident in self.view.opened for rank in incident.suspects)

    @cached_property
    def tempos(self) -> Mapping[GroupName, Sequence[Tempo]]:
        """Known ones of the ranks of each group with its own series."""
        tempos = self.view.tempos.items()
        return self._exported(grouped((group_of(rank), tempo) for rank, tempo in tempos))

    @cached_property
    def steps(self) -> Mapping[GroupName, Sequence[StepState]]:
        """What the ranks of each of them report."""
        seen = self.view.snapshot.observations
        return self._exported(
            grouped((rank.identity.group, rank.step) for rank in seen if rank.step is not None)
        )

    def _exported(self, by_group: Mapping[GroupName, Sequence[T]]) -> dict[GroupName, Sequence[T]]:
        names = (group.group for group in self.exported_groups)
        return {name: by_group[name] for name in names if name in by_group}


_JOBS_TOLD: Final = 16
"""One Lighthouse serves one job, but ranks may report any job name."""
_TESTIMONIES_MOST: Final = 200
_NO_ANSWER: Final = "no Lighthouse answers"
_NO_STEPS: Final = "no rank of it reports steps"
_NO_TEMPO: Final = "it committed nothing for 15 s"
_NOT_YET: Final = "TorchFT never did it"

_HEALTHS: Final = ("healthy", "finished", "starting", "waiting", "late", "slow", "ended", "traced",
                   "evicting", "unreachable", "corrupt", "stalled", "dead")  # fmt: skip
STATES: Final[Mapping[str, int]] = {health: code for code, health in enumerate(_HEALTHS)}
"""Health of a rank or group -> value of `lightkeeper_group_state`; the worst is the highest."""
JOB_STATES: Final[Mapping[str, int]] = {
    state: code for code, state in enumerate((
        JobState.TRAINING, JobState.FINISHED, JobState.WATCHING, JobState.WAITING,
        JobState.STARTING, JobState.PAUSING, JobState.INTERRUPTED, JobState.DISTURBED,
        JobState.LATE, JobState.ENDED, JobState.STALLING, JobState.STOPPED,
    ))
}  # fmt: skip
"""What the headline says of the job -> value of `lightkeeper_job_state`; the worst is the highest.
"""


def _numbered(states: Mapping[str, int]) -> str:
    """`0 healthy, 1 finished, ...`."""
    return ", ".join(f"{code} {state}" for state, code in states.items())


Fill = Callable[[ScrapeView], Values]


def _jobs(scene: ScrapeView) -> Values:
    run = next(iter(scene.view.runs), None)
    jobs = {seen.identity.job for seen in scene.view.snapshot.observations}
    jobs = jobs or ({run.job} if run is not None else set())
    rows = [(job, "" if run is None else run.id, scene.url) for job in sorted(jobs)[:_JOBS_TOLD]]
    return dict.fromkeys(rows, 1)


def _unwell(scene: ScrapeView) -> Values:
    """States of the ranks that are not healthy and have a series of their own."""
    healths, suspects = scene.view.result.rank_health, scene.suspects
    unwell = (rank for rank, health in healths.items() if health is not RankHealth.HEALTHY)
    worst = nsmallest(
        scene.bounds.ranks, unwell, lambda r: (r not in suspects, -STATES[healths[r]], r)
    )
    return [(split_rank_name(rank), STATES[healths[rank]]) for rank in worst]


def _moment(scene: ScrapeView, age_s: float | None) -> float | None:
    """Unix time of what is this old."""
    return None if age_s is None else scene.view.snapshot.now_s - age_s


def _loss(scene: ScrapeView) -> Values:
    """The median over live ranks: a dead rank's page keeps its last loss."""
    reports = (report for report in scene.view.snapshot.reports.values() if report.process.alive)
    steps = (report.step for report in reports if report.step is not None)
    losses = [step.loss for step in steps if step.loss is not None and step.loss_finite]
    return median(losses) if losses else None


def _tally(every: Iterable[T], kinds: Iterable[T]) -> dict[T, int]:
    """How many are of each kind; 0: none."""
    tally = Counter(every)
    return {kind: tally[kind] for kind in kinds}


def _groups(of: Callable[[GroupView, ScrapeView], float | None]) -> Fill:
    return lambda scene: [(group.group, of(group, scene)) for group in scene.exported_groups]


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
    """What the Lighthouse's page says, while that can be read."""

    def fill(scene: ScrapeView) -> Values:
        page = scene.view.snapshot.lighthouse
        return of(page) if isinstance(page, LighthouseView) else None

    return fill


def _evicting(of: Callable[[View], Values]) -> Fill:
    """What is left out where there is no Lighthouse, and so no eviction."""
    return lambda scene: None if scene.view.snapshot.alone else of(scene.view)


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
    """A value for each group whose ranks time their recoveries."""

    def fill(scene: ScrapeView) -> Values:
        times = {group: [step.times for step in steps] for group, steps in scene.steps.items()}
        return [(group, of(each)) for group, each in times.items() if any(each)]

    return fill


def _last_s(part: str) -> Fill:
    return _torchft(lambda times: max((t[part].last_s for t in times if part in t), default=None))


_OF_FLEET: Final[Metrics] = (
    FLEET.gauge("job_info", "1, with the job's id, its run, and this monitor's public URL.",
        ("job_id", "run", "url"), _jobs, series="1", absent="no rank"),
    FLEET.gauge("job_state", f"The page's headline, the worst highest: {_numbered(JOB_STATES)}.",
        (), lambda scene: JOB_STATES[scene.headline.state]),
    FLEET.gauge("job_last_commit_timestamp_seconds", "Unix time of the last commit of any rank.",
        (), lambda scene: _moment(scene, scene.headline.commit_age_s), absent="none is known"),
    FLEET.gauge("job_usual_commit_seconds", "Usual seconds from commit to commit.", (),
        lambda scene: scene.view.spent.usual_s, absent="not known yet"),
    FLEET.gauge("job_loss", "Median of the finite losses of live ranks.", (), _loss,
        absent="none is reported"),
    FLEET.gauge("ranks", "Registered ranks, by health.", ("health",),
        lambda scene: _tally(scene.view.result.rank_health.values(), RankHealth), series="12"),
    FLEET.gauge("groups", "Replica groups, by the health of their worst rank.", ("health",),
        lambda scene: dict(sorted(Counter(g.health for g in scene.view.groups).items())),
        series="≤ 13", absent="healths that no group has"),
    FLEET.gauge("rank_state", "Health of a rank, numbered as the group's.", RANK, _unwell,
        absent="healthy"),
    FLEET.gauge("group_state", "Health of the group's worst rank, the worst highest: "
        f"{_numbered(STATES).replace('evicting', 'on its way out')}.", GROUP,
        _groups(lambda group, _: STATES.get(group.shown)),
        absent="only the Lighthouse knows the group"),
    FLEET.gauge("group_step", "Step that the group works on.", GROUP,
        _groups(lambda group, _: group.step), absent=_NO_STEPS),
    FLEET.counter("group_commits", "Steps committed by the group's current processes.", GROUP,
        _groups(lambda group, _: group.commits), absent=_NO_STEPS),
    FLEET.counter("group_tokens", "Tokens that the group's ranks report to have trained on "
        "since this monitor started, summed.", GROUP,
        _groups(lambda group, scene: scene.view.tokens.get(group.group)),
        absent="no rank of the group reports tokens"),
    FLEET.gauge("group_in_quorum", "1 while the group is a member of the last quorum.", GROUP,
        _groups(lambda group, _: group.in_quorum), absent=_NO_ANSWER),
    FLEET.gauge("group_last_heartbeat_timestamp_seconds",
        "Unix time of the group's last heartbeat to the Lighthouse.", GROUP,
        _groups(lambda group, scene: _moment(scene, group.heartbeat_age_s)), absent=_NO_ANSWER),
    FLEET.counter("lighthouse_restarts", "Restarts of the Lighthouse seen by this monitor.", (),
        _evicting(lambda view: view.lighthouse.restarts), absent=ALONE),
    FLEET.counter("quorum_changes", "Quorums formed since this monitor started.", (),
        _evicting(lambda view: view.lighthouse.quorum_changes), absent=ALONE),
    FLEET.gauge("host_testimony_since_timestamp_seconds",
        "Unix time since which a host's own witnesses or the cluster say this of it: broken, "
        "leaving or slow. Mere context is left out.", ("host", "witness", "code", "weight"),
        _testimonies, series=f"≤ {_TESTIMONIES_MOST}", absent="nothing is said of any host"),
    FLEET.gauge("lighthouse_read_timestamp_seconds",
        "Unix time at which the Lighthouse's page was last read.", (),
        _evicting(lambda view: view.lighthouse.view_s), absent="it was never read"),
    FLEET.gauge("lighthouse_up", "1 while the Lighthouse's page can be read.", (),
        _evicting(lambda view: not isinstance(view.snapshot.lighthouse, LighthouseAway)),
        absent=ALONE),
    FLEET.gauge("quorum_id", "Id of the last quorum.", (), _lighthouse(lambda page: page.quorum_id),
        absent=_NO_ANSWER),
    FLEET.gauge("quorum_participants", "Members of the last quorum.", (),
        _lighthouse(lambda page: len(page.members)), absent=_NO_ANSWER),
    FLEET.gauge("quorum_formed_timestamp_seconds",
        "Unix time at which this monitor first saw the last quorum; it is at least so old.", (),
        _evicting(lambda view: view.lighthouse.formed_s), absent="no quorum was seen yet"),
    STRAGGLERS.gauge("rank_busy_seconds",
        "Mean seconds a step in which the rank did not wait for others, last window.", RANK,
        _ranks(lambda tempo: tempo.busy_s), absent=_NO_TEMPO),
    STRAGGLERS.gauge("rank_wait_seconds",
        "Mean seconds a step in which the rank waited for others, last window.", RANK,
        _ranks(lambda tempo: tempo.wait_s), absent=_NO_TEMPO),
    STRAGGLERS.gauge("fleet_busy_seconds",
        "Seconds a step in which ranks did not wait: min, median, p99 and max of all ranks.",
        ("stat",), _spread, series="4", absent="no rank committed for 15 s"),
    STRAGGLERS.gauge("group_busy_seconds",
        "Seconds a step that the group's longest working rank worked.", GROUP,
        lambda scene: {g: max(t.busy_s for t in each) for g, each in scene.tempos.items()},
        absent=_NO_TEMPO),
    STRAGGLERS.gauge("group_wait_seconds",
        "Seconds a step that the ranks of the group waited (median).", GROUP,
        lambda scene: {g: median(t.wait_s for t in each) for g, each in scene.tempos.items()},
        absent=_NO_TEMPO),
    RECOVERY.counter("group_commit_failures",
        "Attempts of the group's current processes that ended without a commit.", GROUP,
        lambda scene: {g: max(s.commit_failures for s in each) for g, each in scene.steps.items()},
        absent=_NO_STEPS),
    RECOVERY.counter("group_heals",
        "Times that the group's current processes took over another group's state.", GROUP,
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


SUSPECTS_TOLD: Final = 100
INCIDENTS_TOLD: Final = 50
_RECENT_S: Final = 3600.0
_HOSTS_TOLD: Final = 100
"""Most hosts with a record that have a series each: host names come and go."""


def _open(scene: ScrapeView) -> Values:
    opened, work = scene.view.opened, scene.view.work
    left = (each for each in opened if work.of(each).resolved is None)
    tally = Counter((each.kind, each.state, each.severity) for each in left)
    return dict(sorted(tally.items()))


def _labels(scene: ScrapeView) -> Values:
    labels = scene.view.work.labels.items()
    return {
        (kind, label): tally[label == "right"]
        for kind, tally in labels
        for label in ("right", "wrong")
    }


def _first_seen(scene: ScrapeView) -> Values:
    since_s = scene.view.snapshot.now_s - _RECENT_S
    recent = [
        incident
        for incident in scene.view.incidents
        if incident.open or incident.milestones.first_seen_s >= since_s
    ]
    recent.sort(key=lambda incident: not incident.open)  # the others stay in their order
    return {
        (i.id, i.kind, i.severity, i.state, *_where(i), _did(scene.view, i)):
        i.milestones.first_seen_s
        for i in recent[:INCIDENTS_TOLD]
    }  # fmt: skip


def _where(incident: Incident) -> tuple[str, str, str]:
    """Group, rank and host of the suspects, each empty where they are of several."""
    ranks, groups, hosts = incident.suspects, incident.groups, incident.hosts
    rank = str(split_rank_name(ranks[0])[1]) if len(ranks) == 1 else ""
    group = groups[0] if len(groups) == 1 else ""
    return group, rank, hosts[0] if len(hosts) == 1 else ""


def _did(view: View, incident: Incident) -> str:
    """The guard that holds its eviction back, or how far the eviction is; empty: neither."""
    last = _ruling(view, incident)
    if last is None or (last.guard is not None and incident.state is not State.FIRING):
        return ""
    return str(last.guard or last.state)


def _suspects(scene: ScrapeView) -> Values:
    hosts: dict[tuple[RankName, str, str], Host] = {}
    for incident in reversed(scene.view.opened):
        role = "culprit" if incident.culprits else "candidate"
        for rank in incident.suspects:
            host = incident.hosts[0] if len(incident.hosts) == 1 else Host("")
            hosts[rank, incident.kind, role] = host
    suspects: dict[tuple[object, ...], float] = {}
    for (rank, kind, role), host in sorted(hosts.items())[:SUSPECTS_TOLD]:
        seen = scene.view.snapshot.by_rank.get(rank)
        at = host if seen is None else seen.identity.host
        suspects[*split_rank_name(rank), at, kind, role] = 1
    return suspects


# What people set to hold evictions back, and what was learned for them; the quarantine.


def _guards(view: View) -> Iterator[Guard]:
    """The guard of each firing incident whose latest decision was to hold."""
    for incident in view.incidents:
        last = _ruling(view, incident)
        if incident.state is State.FIRING and last is not None and last.guard is not None:
            yield last.guard


def _ruling(view: View, incident: Incident) -> Hold | Eviction | None:
    """The latest decision about an incident."""
    rows = rulings(view.decisions.get(incident.id, ()))
    return max(rows, key=lambda row: row.at_s, default=None)


def _offences(scene: ScrapeView) -> Values:
    """What happened on the worst hosts with a record."""
    view = scene.view
    records = [record for record in view.hosts.values() if not record.clean]
    records.sort(
        key=lambda record: (record.lemon is None, -sum(record.incidents.values()), record.host)
    )
    return {
        (record.host, signal): count
        for record in records[:_HOSTS_TOLD]
        for signal, count in (
            ("incidents", sum(record.incidents.values())),
            ("evictions", record.evictions),
            ("quarantines", record.quarantines),
            ("failed_readmissions", record.failed_readmissions),
        )
        if count or not (view.snapshot.alone and signal == "evictions")
    }


_OF_INCIDENTS: Final[Metrics] = (
    INCIDENTS.gauge("incidents",
        "Open incidents, by kind, state and severity (info, warning, critical), without those that "
        "a person has resolved.",
        ("kind", "state", "severity"), _open, series=f"≤ {len(FAULTS)} x 3 x 3",
        absent="none is open"),
    INCIDENTS.gauge("incident_first_seen_timestamp_seconds",
        "Unix time at which an incident was first seen: the 50 newest, open or of the last "
        "hour. Group, rank and host are its suspect's, if there is only one; `did` is what is "
        "done, or why nothing is.",
        ("incident", "kind", "severity", "state", "replica_group", "rank", "host", "did"),
        _first_seen,
        series="≤ 50", absent="there is none"),
    INCIDENTS.gauge("labelled_incidents", "Incidents that people labelled, by kind and by whether "
        "the accusation was right or wrong: precision is right / (right + wrong).",
        ("kind", "label"), _labels, series=f"≤ {len(FAULTS) + 1} x 2",
        absent="none of the kind was labelled"),
    INCIDENTS.gauge("rank_suspect", "1 for each culprit of an open incident, and for each "
        "candidate of one that is unsure, 100 at most. The role is culprit or candidate.",
        (*RANK, "host", "kind", "role"), _suspects, series="≤ 100",
        absent="nobody is suspected"),
    EVICTIONS.gauge("holding", "Firing incidents whose eviction is held back now, by guard.",
        ("guard",), _evicting(lambda view: _tally(_guards(view), Guard)), series=f"{len(Guard)}",
        absent=ALONE),
    EVICTIONS.gauge("eviction_cost_seconds",
        "Fleet seconds that an eviction costs, measured on those of this job.", (),
        _evicting(lambda view: view.result.learned.eviction_cost_s),
        absent="no eviction of this job was measured yet"),
    EVICTIONS.gauge("paused", "1 while a person has paused evictions.", (),
        _evicting(lambda view: view.snapshot.pause is not None), absent=ALONE),
    EVICTIONS.gauge("observe_mode",
        "1 while the monitor evicts nobody and says whom it would (observe mode).", (),
        _evicting(lambda view: view.observe), absent=ALONE),
    EVICTIONS.gauge("policy_loaded_timestamp_seconds",
        "Unix time at which the policy was loaded; 0: there is none, the defaults apply.", (),
        _evicting(lambda view: None if view.rules is None else view.rules.loaded_s), absent=ALONE),
    EVICTIONS.gauge("quarantined_hosts", "Hosts in quarantine.", (),
        lambda scene: len(scene.view.quarantine)),
    EVICTIONS.gauge("quarantined_groups", "Replica groups in quarantine.", (),
        lambda scene: len(scene.view.quarantine_groups)),
    EVICTIONS.gauge("lemon_hosts", "Hosts that failed so often that they are lemons.", (),
        lambda scene: sum(record.lemon is not None for record in scene.view.hosts.values())),
    EVICTIONS.gauge("host_offences",
        "Offences of a host within the window (28 days), by signal; the 100 worst hosts.",
        ("host", "signal"), _offences, series="≤ 400",
        absent="hosts on which nothing happened"),
    GOODPUT.counter("effective_rank_seconds", "Rank-seconds that went into committed steps at the "
        "job's usual pace, since this monitor started.", (),
        lambda scene: scene.view.spent.effective_s),
    GOODPUT.counter("ineffective_rank_seconds", "All other rank-seconds, by cause.", ("cause",),
        lambda scene: dict(sorted(scene.view.spent.ineffective_s.items())),
        series=f"≤ {len(FAULTS) + 7}",
        absent="causes that cost nothing"),
)  # fmt: skip


def _detectors(scene: ScrapeView) -> Values:
    detectors = sorted(scene.view.result.detectors.items())
    return [d for d in detectors if not (scene.view.snapshot.alone and d[0] in OF_LIGHTHOUSE)]


_OF_HEALTH: Final[Metrics] = (
    HEALTH.gauge("detector_up",
        "1 while the detector works; 0: it crashed in the last tick, its fault is unknown.",
        ("detector",), _detectors, series="one a detector"),
    HEALTH.gauge("self_health", "1 for the state of the monitor's own health, 0 for the others.",
        ("state",), lambda scene: _tally([scene.view.result.health.state], Condition),
        series="7"),
    HEALTH.gauge("self_health_scale",
        "Factor on thresholds while the monitor doubts itself; 1: it does not.", (),
        lambda scene: scene.view.result.health.scale),
)  # fmt: skip
METRICS: Final[Metrics] = _OF_FLEET + _OF_INCIDENTS + _OF_HEALTH
"""Read from the view; those below are read from what their comments say."""

# of its version
BUILD: Final = HEALTH.gauge("build_info", "1, with the version.", ("version",),
    lambda version: {version: 1}, series="1")  # fmt: skip


def _nbytes(store: Path | None) -> float | None:
    """Size of the SQLite file (None: PostgreSQL); reads only that from the disk."""
    return None if store is None else sum(_size(store, end) for end in ("", "-wal", "-shm"))


def _size(path: Path, end: str) -> int:
    """0 for a missing file: SQLite makes its log when it needs one."""
    try:
        return path.with_name(path.name + end).stat().st_size
    except OSError:
        return 0


STORE: Final = (  # of the store
    KEPT.counter("store_errors", "Writes to the store that failed; they are retried.", (),
        lambda store: store.errors),
    KEPT.gauge("store_bytes", "Bytes of the store's files on disk, the write-ahead log included.",
        (), lambda store: _nbytes(store.place.path), absent="the store is PostgreSQL"),
)  # fmt: skip
QUEUES: Final = KEPT.gauge("queue_length", "What waits: store (rows to be written), journal "
    "(ticks), http (requests without a free thread); else what is under way.",
    ("queue",), lambda queues: {name: size() for name, size in sorted(queues.items())},
    series="≤ 5", absent="queues that this monitor does not have")  # fmt: skip
REFUSED: Final = KEPT.counter("registrations_refused", "Registrations refused, by reason: "
    "superseded, wait (the name's holder is asked first), taken (it lives), other job, over (run "
    "ended), refused (another group's name), hasty (too many new ranks there), full, token.",
    ("reason",), lambda counts: dict(sorted(counts.items())),
    series="≤ 9", absent="none since the start")  # fmt: skip
JOURNAL: Final = (  # of `Stats`
    KEPT.counter("journal_ticks", "Ticks written to the journal.", (), lambda now: now.ticks),
    KEPT.counter("journal_lost_ticks", "Ticks that could not be written to the journal.", (),
        lambda now: now.lost),
    KEPT.counter("journal_written_bytes", "Bytes written to the journal, compressed.", (),
        lambda now: now.bytes),
    KEPT.gauge("journal_failing", "1 while the journal is not written.", (),
        lambda now: now.problem is not None),
)  # fmt: skip
LEASE: Final = (  # of `LeaseStanding`
    KEPT.gauge("monitor_active",
        "1 while this monitor holds the lease and acts, 0 while it stands by.", (),
        lambda seen: seen.active),
    KEPT.gauge("lease_epoch",
        "Epoch of the lease, as far as this monitor knows; it grows with each handover.", (),
        lambda seen: seen.epoch),
    KEPT.gauge("lease_failing", "1 while the lease can be neither renewed nor looked at.", (),
        lambda seen: seen.problem is not None),
)  # fmt: skip


# Of the `Gatekeeper`: the gate as the monitor sees it; its own page has more (`gate.serve`).

_NO_GATE: Final = "no gate (--gate)"


def _denials(keeper: Gatekeeper) -> Values:
    if not isinstance(keeper.view, GateView):
        return None
    return _tally((denial.scope for denial in keeper.view.denied), DenialScope)


GATE_METRICS: Final = (
    GATE.gauge("gate_answers", "1 while the gate answers this monitor.", (),
        lambda keeper: isinstance(keeper.view, GateView), absent=_NO_GATE),
    GATE.gauge("gate_untaught", "1 while the gate is away or does not accept its list.", (),
        lambda keeper: any(keeper.troubles()), absent=_NO_GATE),
    GATE.counter("gate_lists", "Lists sent to the gate, by outcome.", ("outcome",),
        lambda keeper: {"taken": keeper.taught, "failed": keeper.failed}, series="2",
        absent=_NO_GATE),
    GATE.gauge("gate_denials", "Names that the gate refuses, by scope.", ("scope",), _denials,
        series="3", absent="no gate, or it does not answer"),
)  # fmt: skip


class ViewCollector(Collector):
    """Computed from the latest view when Prometheus asks; what is not known is left out.

    `wait`: until the monitor has time, but not for long: the families of 10,000 ranks take 50 ms of
    the interpreter that the tick needs. `url`: where browsers reach this monitor.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        bounds: Bounds | None = None,
        wait: Callable[[], object] = lambda: None,
        url: Callable[[], str] = lambda: "",
    ) -> None:
        self._view = view
        self._url = url
        self._bounds = bounds or Bounds()
        self._wait = wait
        self._cached: tuple[View | None, tuple[Metric, ...]] = (None, ())
        """The view last scraped: two Prometheus servers often scrape the same one."""

    def collect(self) -> tuple[Metric, ...]:
        """Made once a view; if two threads make them, both make the same."""
        view = self._view()
        if view is not None and view is not self._cached[0]:
            self._wait()
            view = self._view() or view
            scene = ScrapeView(view, self._bounds, self._url())
            self._cached = view, tuple(each for metric in METRICS for each in metric.read(scene))
        return self._cached[1]
