"""Fleet: one screen for a wall and for 3 a.m., without scrolling at 1920 x 1080.

First every job, so that no lucky one hides another; then the chosen job: does it train, and is it
my turn? Then its incidents over the full width, and where the time goes.
"""

from __future__ import annotations

from typing import Final

from lightkeeper.dashboards.drill_downs import incident_table
from lightkeeper.dashboards.panels import Board, Cells, Query, curves, more, rows, tile
from lightkeeper.dashboards.selectors import (
    CAUSES,
    GREY,
    HEALTH,
    JOB_STATE,
    KEEPER_STATE,
    NOT_SEEN,
    SEVERITY,
    UNSEEN,
    age_of,
    called,
    goodput,
    keeper_state,
    mon,
    or_none,
)

_JOB: Final = "cluster, namespace, job_id"
_MONITOR: Final = "cluster, namespace, instance"
_LATELY: Final = f"max by ({_JOB}) (last_over_time(lightkeeper_job_info[1h]))"
"""1 for each job of the last hour, whether its monitor is still seen or not."""
_GOOD: Final = {0.0: "red", 0.8: "orange", 0.95: "green"}


def _of_job(expr: str, *keep: str) -> str:
    """The worst of the job's monitors, with the job's name; `keep`: labels to keep as well."""
    info = f"topk by ({_MONITOR}) (1, lightkeeper_job_info)"
    by = ", ".join((_JOB, *keep))
    return f"max by ({by}) (({expr}) * on ({_MONITOR}) group_left (job_id) {info})"


def _alerts() -> str:
    """Since when each of them fires, with its job where only the monitor is known."""
    ours = 'alertname=~"Lightkeeper.+"'
    now = f'ALERTS{{{ours}, alertstate="firing"}}'
    firing = f"(ALERTS_FOR_STATE{{{ours}}} and ignoring (alertstate) {now})"
    info = "topk by (instance) (1, last_over_time(lightkeeper_job_info[1h]))"
    unloaded = (
        "time() + 0 * max(lightkeeper_monitor_active) "
        "unless on () max(job_id:lightkeeper_monitor_active:max)"
    )
    return (
        f"{firing} * on (instance) group_left (job_id) {info} "
        f"or ({firing} unless on (instance) {info}) "
        f"or {called(unloaded, 'alertname', 'rules.yml is not loaded here')}"
    )


_CHOOSE: Final = "/d/lightkeeper-fleet?${__url_time_range}" + "".join(
    f'&var-{name.removesuffix("_id")}=${{__data.fields["{name}"]}}' for name in _JOB.split(", ")
)
_JOBS: Final = [
    rows(
        "Jobs",
        Cells("cluster", 70),
        Cells("namespace", 95),
        Cells("job", label="job_id", links={"Show this job": _CHOOSE}),
        Cells("state", 145, expr=f"{_of_job('lightkeeper_job_state')} or 12 * {_LATELY}",
               values=JOB_STATE),
        Cells("last commit", 100, unit="s", decimals=0,
               expr=_of_job(age_of("lightkeeper_job_last_commit_timestamp_seconds"))),
        Cells("goodput, 5 min", 120, unit="percentunit", decimals=0, levels=_GOOD,
               expr=f"{_of_job(goodput('5m', ''))} >= 0"),
        Cells("", expr=_of_job(f"topk by ({_MONITOR}) (1, lightkeeper_rank_suspect)",
                                "replica_group", "rank", "host")),
        Cells("suspect", 90, label="replica_group"),
        Cells("rank", 50),
        Cells("host", 110),
        Cells("", expr=_of_job(f"topk by ({_MONITOR}) (1, lightkeeper_holding > 0)", "guard")),
        Cells("held by", 90, label="guard"),
        Cells("keeper", 140, expr=f"{_of_job(keeper_state(''))} or 7 * {_LATELY}",
              values=KEEPER_STATE),
        Cells("ranks", 60, expr=_of_job(f"sum by ({_MONITOR}) (lightkeeper_ranks)")),
        Cells("scraped", 70, expr=f'sum by ({_JOB}) (up{{job_id!="", rank!=""}})'),
        sort="state", width=17, height=6, empty="no monitor is scraped",
        says="All jobs that this Prometheus knows, the worst first; click one to show it below. "
        "'monitor not seen': nobody watches it. 'scraped': ranks' own pages, for the Rank board.",
    ),
    rows(
        "Alerts",
        Cells("since", 125, expr=f"1000 * ({_alerts()})", unit="dateTimeFromNow"),
        Cells("severity", 75, values=SEVERITY),
        Cells("alert", label="alertname"),
        Cells("of job", 90, label="job_id"),
        hidden=("alertstate", "sink", "detector", "state", "kind", "run", "url"),
        sort="since", width=7, height=6, empty="no alert fires",
        says="Alerts of Prometheus that fire, of all jobs. Grafana's own are under Alerting.",
    ),
]  # fmt: skip

_HELD: Final = or_none(f"max by (guard) ({mon('holding')}) > 0", "guard", acts=True)
_COMMIT: Final = mon("job_last_commit_timestamp_seconds")
_NOW: Final = [
    tile(
        "Training", Query(f"max({mon('job_state')})"), values=JOB_STATE,
        width=5, height=4, empty=NOT_SEEN,
        says="As the headline of the monitor's page. 'stalling': no commits, and the culprit is "
        "not known yet; 'not training': an incident below says who it is.",
    ),
    tile(
        "Since the last commit",
        Query(f"max({age_of(_COMMIT)})", "last commit"),
        Query(f"max({mon('job_usual_commit_seconds')})", "a commit usually takes"),
        text="value_and_name", unit="s", width=5, height=4, empty="no commit known",
        says="Since any rank committed a step. The job is late after three usual commits, and "
        "stands after five.",
    ),
    tile(
        "Held back by",
        Query(f"{_HELD} or {called(f'-{UNSEEN}', 'guard', NOT_SEEN)}", "{{guard}}"),
        text="name", levels={0.0: "green", 1.0: "orange"}, width=5, height=4,
        links=more("Incidents", "lightkeeper-incidents"),
        says="The guard that holds an eviction back: it is your turn. The incident's page says "
        "why, and has the button. 'none': the keeper does what is to be done.",
    ),
    tile(
        "The keeper", Query(f"max({keeper_state()}) or vector(7)"), values=KEEPER_STATE,
        width=4, height=4, links=more("Keeper", "lightkeeper-keeper"),
        says="Does it act? 'no Lighthouse': it watches only. 'observes': it only says whom it "
        "would evict. 'doubts itself': Keeper says why. 'paused': by a person, until `lightkeeper "
        "resume`. 'not seen': it is down or not scraped; nothing else here is to be believed.",
    ),
    tile(
        "Goodput",
        *(Query(f"max({goodput(window)} and on (instance) {mon('monitor_active')})", name)
          for window, name in (("5m", "5 min"), ("1h", "hour"), ("1d", "day"))),
        text="value_and_name", unit="percentunit", decimals=0, levels=_GOOD, width=5, height=4,
        empty="not known", links=more("Lost seconds by cause", "lightkeeper-incidents"),
        says="Share of the ranks' time that trained. When it is low, 'Where ranks' time goes' "
        "says what takes the rest.",
    ),
    incident_table(
        "Open incidents", 'state!="resolved"', "dateTimeFromNow",
        width=24, height=5, empty="no open incident",
        says="What is wrong now, newest first. Click the incident: its page tells who did it, how "
        "it is known, and what was done. Click rank or host for their pages.",
    ),
]  # fmt: skip

_GROWN: Final = f"max({mon('effective_rank_seconds_total')})"
_TRAINS: Final = f"max(rate({mon('effective_rank_seconds_total')}[$__rate_interval]))"
_LOST: Final = f"max by (cause) (rate({mon('ineffective_rank_seconds_total')}[$__rate_interval]))"
_RANKS: Final = f"max(sum by (instance) ({mon('ranks')}))"
_REST: Final = f"clamp_min({_RANKS} - {_TRAINS} - (sum({_LOST}) or 0 * {_RANKS}), 0)"
_TOKENS: Final = f"rate({mon('group_tokens_total')}[$__rate_interval])"
_TIME: Final = [
    curves(
        "Where ranks' time goes (ranks)",
        Query(f"clamp_max({_TRAINS}, scalar({_RANKS})) and {_GROWN} > 0", "training"),
        Query(_LOST, "{{cause}}"),
        Query(f"{_REST} and {_GROWN} > 0", "cause not known yet"),
        stacked=True, colours=CAUSES, width=10, height=7, empty="the job reports no steps",
        coarse="1m",  # seconds whose cause takes a minute to find are counted all at once
        says="How many ranks train, and what keeps the others from it; a cause is known within "
        "a minute. A band that stays is worth a repair: open Incidents for that kind.",
    ),
    curves(
        "Ranks by health", Query(f"max by (health) ({mon('ranks')}) > 0", "{{health}}"),
        stacked=True, colours={health: colour for health, (_, colour) in HEALTH.items()},
        width=7, height=7, links=more("Replica groups", "lightkeeper-groups"),
        says="Yellow ranks wait for others. One red rank among yellow ones is the one to look "
        "at. Many unreachable at once: first the network between them and the monitor.",
    ),
    curves(
        "Tokens a second",
        Query(f"max(sum by (instance) ({_TOKENS}))", "tokens/s"),
        unit="short", colours={"tokens/s": "blue"}, width=4, height=7,
        empty="the job reports no tokens",
        says="Of all groups together. A step down: a group left, or steps got longer.",
    ),
    curves(
        "Loss", Query(f"max({mon('job_loss')})", "median of ranks"), floor=None,
        colours={"median of ranks": GREY}, width=3, height=7, empty="the job reports no loss",
        says="Median of the losses that the ranks last reported. One that jumps up and stays: "
        "look at the Rank dashboard for the ranks whose loss it is.",
    ),
]  # fmt: skip

FLEET: Final = Board(
    "fleet", "Which job stands, must I act, who caused it? One screen; each panel links to more.",
    {"Every job": _JOBS, "$job: does it train, and must I act?": [*_NOW, *_TIME]},
)  # fmt: skip
