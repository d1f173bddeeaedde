"""Exposition pages of a large fleet, without the fleet: what a Prometheus would scrape of it."""

from __future__ import annotations

import random

from prometheus_client import generate_latest

from lightkeeper.monitor.decide.rank_seconds import Spent
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.loop.evictions import ENDED, HOLDS, count_incidents
from lightkeeper.monitor.loop.loop import LATENESS, TICKS
from lightkeeper.monitor.metric import Filled, new_page
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseView, Member
from lightkeeper.monitor.model.verdict import Kind, RankHealth
from lightkeeper.monitor.show.metrics import BUILD, LEASE, Bounds, ViewCollector
from lightkeeper.monitor.store.lease import LeaseStanding
from tests.changed import replace
from tests.monitor.samples import incident, seen, view

RANKS_PER_GROUP = 8
BUCKETS = ("0.1", "0.25", "0.5", "1.0", "2.5", "+Inf")


def monitor_page(ranks: int) -> bytes:
    """The monitor's, of so many ranks, with incidents, and a series for each rank and group."""
    rng = random.Random(8)
    groups = ranks // RANKS_PER_GROUP
    names = [f"rg_{number}" for number in range(groups)]
    observed = [
        seen(group, number, replica_id=f"{group}:a", host=f"node{index}")
        for index, group in enumerate(names)
        for number in range(RANKS_PER_GROUP)
    ]
    members = tuple(Member(ReplicaId(f"{group}:a"), 10) for group in names[:-20])
    beats = {ReplicaId(f"{group}:a"): rng.random() for group in names}
    light = LighthouseView(7, members, beats, "fine")
    healths = [RankHealth.WAITING] * 90 + list(RankHealth)
    open_now = [
        replace(
            incident(), id=IncidentId(f"inc-{number}"), kind=list(Kind)[number % len(Kind)],
            culprits=(RankName(f"rg_{number}.0"),), groups=(GroupName(f"rg_{number}"),),
            hosts=(Host(f"node{number}"),),
        )
        for number in range(120)
    ]  # fmt: skip
    shown = view(
        *observed,
        lighthouse=light,
        health={observation.rank: rng.choice(healths) for observation in observed},
        tempos={
            observation.rank: Tempo(2.0, rng.gauss(0.2, 0.01), 0.1) for observation in observed
        },
        incidents=tuple(open_now),
        decisions={
            shown.id: (Hold(shown.id, list(Guard)[number % len(Guard)], "a reason", at_s=999.0),)
            for number, shown in enumerate(open_now)
        },
        spent=Spent(1e6, {"starting": 10.0, "not_entered": 40.0}, usual_s=0.3),
        tokens={GroupName(group): 1000 for group in names},
    )
    metrics = new_page()
    bounds = Bounds(ranks, groups)
    metrics.register(ViewCollector(lambda: shown, bounds))
    metrics.register(Filled((BUILD,), lambda: "0"))
    standing = LeaseStanding(active=True, epoch=1, holder=None, url=None, since_s=None)
    metrics.register(Filled(LEASE, lambda: standing))
    count_incidents(metrics, open_now, {})
    for kind in Kind:
        ENDED.on(metrics).labels(str(kind), "gone").inc()
    for guard in ("budget", "cool_down", "min_replicas"):
        HOLDS.on(metrics).labels(guard).inc()
    TICKS.on(metrics).observe(0.4)
    LATENESS.on(metrics).set(0.1)
    return generate_latest(metrics) + b"process_start_time_seconds 1\n"


def ranks_page(ranks: int) -> bytes:
    """What so many ranks say of themselves that panels read, on one page."""
    lines: list[str] = []
    for number in range(ranks):
        group, rank = divmod(number, RANKS_PER_GROUP)
        who = f'job_id="job",replica_group="rg_{group}",rank="{rank}"'
        lines += [f"lightkeeper_rank_{name}{{{who}}} {value}" for name, value in _PLAIN.items()]
        lines.append(
            f'lightkeeper_rank_info{{{who},host="node{group}",pid="{number}",'
            f'replica_id="rg_{group}:a",url="http://node{group}:1"}} 1'
        )
        lines.append(f'lightkeeper_rank_phase_since_timestamp_seconds{{{who},phase="forward"}} 9')
        lines += [
            f'lightkeeper_rank_phase_seconds_total{{{who},phase="{phase}"}} 5'
            for phase in ("forward", "backward", "communication", "optimizer")
        ]
        lines += [
            f'lightkeeper_rank_collective_{name}{{{who},process_group="{name_of}"}} {value}'
            for name, value in (("enqueued", 12), ("completed", 11), ("lag", 1))
            for name_of in ("default", "dp")
        ]
        lines += [f'lightkeeper_rank_step_seconds_bucket{{{who},le="{le}"}} 9' for le in BUCKETS]
    return ("\n".join(lines) + "\n").encode()


_PLAIN = {
    "alive": 1, "process_state": 1, "step": 10, "loss": 2.5, "finite": 1,
    "last_commit_timestamp_seconds": 1e9,
    "attempts_total": 11, "commits_total": 10, "commit_failures_total": 1, "tokens_total": 4096,
    "communication_seconds_total": 3, "step_seconds_sum": 4, "step_seconds_count": 9,
}  # fmt: skip
