"""Scenarios that tests share."""

from __future__ import annotations

from monitor.goodput.scenario import Handling, Job, Mix, Response, Scenario, Spares, Times

HOUR_S = 3600.0
JOB = Job(ranks=80, groups=10, mtbf_s=HOUR_S)
TIMES = Times(
    evict_s=1.0, requorum_s=5.0, restart_s=200.0, heal_s=20.0, first_step_s=30.0,
    job_restart_s=540.0, step_s=10.0,
)  # fmt: skip
MIX = Mix(stop=0.7, hang=0.2, slow=0.1, slowdown=2.0, slow_lasts_s=1200.0)
KEPT = Handling("kept", Response(2.0), Response(10.0), Response(60.0))
ALONE = Handling("alone", Response(2.0), Response(125.0, takes_job=True), Response(None))
SYNC = Handling(
    "synchronous", Response(60.0, takes_job=True), Response(60.0, takes_job=True), Response(None)
)


def scene(
    handling: Handling = KEPT,
    *,
    job: Job = JOB,
    mix: Mix = MIX,
    times: Times = TIMES,
    spares: Spares | None = None,
) -> Scenario:
    return Scenario(job, mix, times, handling, spares or Spares())
