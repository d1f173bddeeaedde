"""Fleet: one screen for a wall and for 3 a.m., without scrolling at 1920 x 1080.

First every job, so that no lucky one hides another; then the chosen job: does it train, and is it
my turn? Then its incidents over the full width, and where the time goes.
"""

from __future__ import annotations

from typing import Final

from lightkeeper.dashboards.drill_downs import incident_table
from lightkeeper.dashboards.panels import (
    Board,
    ColumnStyle,
    Json,
    Query,
    curves,
    more,
    rows,
    tile,
)
from lightkeeper.dashboards.selectors import (
    BLUE,
    CAUSES,
    GREEN,
    GREY,
    HEALTH,
    JOB_STATE,
    KEEPER_STATE,
    MONITOR,
    ORANGE,
    RED,
    SEVERITY,
    age,
    called,
    goodput,
    keeper,
    or_none,
)

_JOB: Final = "cluster, namespace, job_id"
_MONITOR: Final = "cluster, namespace, instance"
_INFO: Final = f"max by ({_MONITOR}, job_id) (lightkeeper_job_info)"
_LATELY: Final = f"max by ({_JOB}) (last_over_time(lightkeeper_job_info[1h]))"
"""1 for each job of the last hour, whether its monitor is still seen or not."""
_GOODPUT_LEVELS: Final = {0.0: RED, 0.8: ORANGE, 0.95: GREEN}
_STATE: Final = f"lightkeeper_job_state{{{MONITOR}}}"


def fleet_board() -> Board:
    return Board(
        uid="lightkeeper-fleet",
        title="Lightkeeper: fleet",
        about="Which job stands, is it my turn, who did it? One screen; each panel leads on.",
        rows=(
            ("Every job", _jobs()),
            ("$job: does it train, and is it my turn?", [*_now(), _incidents(), *_time()]),
        ),
    )


def _of_job(expr: str, keep: str = "") -> str:
    """The worst of the job's monitors, with the job's name; `keep`: labels to keep as well."""
    by = f"{_JOB}, {keep}" if keep else _JOB
    return f"max by ({by}) (({expr}) * on ({_MONITOR}) group_left (job_id) {_INFO})"


def _jobs() -> list[Json]:
    choose = "/d/lightkeeper-fleet?${__url_time_range}" + "".join(
        f'&var-{variable}=${{__data.fields["{column}"]}}'
        for variable, column in (("cluster", "cluster"), ("namespace", "namespace"), ("job", "job_id"))
    )
    suspect = f"topk by ({_MONITOR}) (1, lightkeeper_rank_suspect)"
    held = f"topk by ({_MONITOR}) (1, lightkeeper_holding > 0)"
    firing = 'alertname=~"Lightkeeper.+"'
    alerts = (
        f"ALERTS_FOR_STATE{{{firing}}} and ignoring (alertstate) "
        f'ALERTS{{{firing}, alertstate="firing"}}'
    )
    unloaded = called(
        "time() + 0 * max(lightkeeper_monitor_active) unless on () "
        "max(job_id:lightkeeper_monitor_active:max)",
        "alertname",
        "rules.yml is not loaded here",
    )
    return [
        rows(
            "Jobs",
            [
                f"{_of_job('lightkeeper_job_state')} or -1 * {_LATELY}",
                _of_job(age("lightkeeper_job_last_commit_timestamp_seconds")),
                _of_job(goodput("", "5m")),
                _of_job(suspect, "replica_group, rank, host"),
                _of_job(held, "guard"),
                f"{_of_job(keeper(''))} or 7 * {_LATELY}",
                _of_job(f"sum by ({_MONITOR}) (lightkeeper_ranks)"),
                f'sum by ({_JOB}) (up{{job_id!="", rank!=""}})',
            ],
            [
                ColumnStyle("cluster", width=80),
                ColumnStyle("namespace", width=100),
                ColumnStyle("job_id", "job", links={"Show this job": choose}),
                ColumnStyle("Value #A", "state", values=JOB_STATE, width=150),
                ColumnStyle("Value #B", "last commit", unit="s", decimals=0, width=90),
                ColumnStyle("Value #C", "goodput, 5 min", unit="percentunit", decimals=0,
                            levels=_GOODPUT_LEVELS, width=115),
                ColumnStyle("replica_group", "suspect", width=100),
                ColumnStyle("rank", width=50),
                ColumnStyle("host", width=110),
                ColumnStyle("guard", "held by", prefix="", width=100),
                ColumnStyle("Value #F", "keeper", values=KEEPER_STATE, width=140),
                ColumnStyle("Value #G", "ranks", width=60),
                ColumnStyle("Value #H", "scraped", width=70),
            ],
            hidden=("Value #D", "Value #E"),
            sort="state",
            width=17,
            height=6,
            empty="no monitor is scraped",
            says="All jobs that this Prometheus knows, the worst first; click one to show it below. "
            "'scraped': how many of its ranks' own pages Prometheus reads, which only the Rank "
            "dashboard needs. 'monitor not seen': nobody watches that job.",
        ),
        rows(
            "Alerts",
            [f"1000 * ({alerts} or {unloaded})"],
            [
                ColumnStyle("Value", "since", unit="dateTimeFromNow", width=110),
                ColumnStyle("severity", values=SEVERITY, width=70),
                ColumnStyle("alertname", "alert"),
                ColumnStyle("job_id", "job", width=80),
                ColumnStyle("kind", width=90),
            ],
            hidden=("alertstate", "sink", "detector", "state", "cluster", "namespace"),
            sort="severity",
            width=7,
            height=6,
            empty="no alert fires",
            says="Prometheus' alerts that fire, of all jobs; dashboards/prometheus has their rules. "
            "Alerts that Grafana itself evaluates are under Alerting.",
        ),
    ]  # fmt: skip


def _now() -> list[Json]:
    commit, usual = (
        f"lightkeeper_job_{name}_seconds{{{MONITOR}}}"
        for name in ("last_commit_timestamp", "usual_commit")
    )
    held = f"max by (guard) (lightkeeper_holding{{{MONITOR}}}) > 0"
    return [
        tile(
            "Training",
            Query(f"max({_STATE})"),
            values=JOB_STATE,
            width=5,
            height=4,
            empty="monitor not seen",
            says="What the monitor's page says in its headline. 'stalling': no commits, and the "
            "culprit is not known yet; 'not training': an incident below says who it is.",
        ),
        tile(
            "Since the last commit",
            Query(f"max({age(commit)})", "last commit"),
            Query(f"max({usual})", "a commit usually takes"),
            text="value_and_name",
            unit="s",
            decimals=1,
            width=5,
            height=4,
            empty="no commit known",
            says="Seconds since any rank committed a step, and how long that usually takes. The "
            "job is late after three usual commits, and stands after five.",
        ),
        tile(
            "Held back by",
            Query(or_none(held, "guard", acts=True), "{{guard}}"),
            text="name",
            levels={0.0: GREEN, 1.0: ORANGE},
            width=5,
            height=4,
            empty="monitor not seen",
            links=more("Incidents", "lightkeeper-incidents"),
            says="The guard that holds an eviction back: it is your turn. The incident's page says "
            "why, and has the button. 'none': the keeper does what is to be done.",
        ),
        tile(
            "The keeper",
            Query(f"max({keeper(MONITOR)}) or vector(7)"),
            values=KEEPER_STATE,
            width=4,
            height=4,
            links=more("Keeper", "lightkeeper-keeper"),
            says="Does it act? 'no Lighthouse': it watches only. 'observes': it only says whom it "
            "would evict. 'doubts itself': Keeper says why. 'paused': somebody pressed the switch; "
            "`lightkeeper resume` ends it. 'Lighthouse away': start it again. 'not seen': the "
            "monitor is down or not scraped; nothing else here is to be believed.",
        ),
        tile(
            "Goodput",
            *(
                Query(f"max({goodput(MONITOR, window)})", name)
                for window, name in (("5m", "5 min"), ("1h", "hour"), ("1d", "day"))
            ),
            text="value_and_name",
            unit="percentunit",
            decimals=0,
            levels=_GOODPUT_LEVELS,
            width=5,
            height=4,
            empty="no steps",
            links=more("Lost seconds by cause", "lightkeeper-incidents"),
            says="Share of the ranks' time that trained. When it is low, 'Where ranks' time goes' "
            "says what takes the rest.",
        ),
    ]


def _incidents() -> Json:
    return incident_table(
        "Open incidents",
        f'{MONITOR}, state!="resolved"',
        ColumnStyle("Value", "began", unit="dateTimeFromNow", width=130),
        width=24,
        height=5,
        empty="no open incident",
        says="What is wrong now, newest first. Click the incident: its page tells who did it, how "
        "it is known, and what was done. Click rank or host for their pages.",
    )


def _time() -> list[Json]:
    good = f"max(rate(lightkeeper_effective_rank_seconds_total{{{MONITOR}}}[$__rate_interval]))"
    bad = f"rate(lightkeeper_ineffective_rank_seconds_total{{{MONITOR}}}[$__rate_interval])"
    lost = f"max by (cause) ({bad})"
    ranks = f"max(sum by (instance) (lightkeeper_ranks{{{MONITOR}}}))"
    tokens = f"rate(lightkeeper_group_tokens_total{{{MONITOR}}}[1m])"
    return [
        curves(
            "Where ranks' time goes",
            Query(f"clamp_max({good}, scalar({ranks}))", "training"),
            Query(lost, "{{cause}}"),
            Query(f"clamp_min({ranks} - {good} - (sum({lost}) or 0 * {ranks}), 0)",
                  "cause not known yet"),
            stacked=True,
            width=10,
            height=7,
            coarse="1m",  # seconds whose cause takes a minute to find are counted all at once
            unit="suffix: ranks",
            colours=CAUSES,
            says="How many ranks train, and what keeps the others from it; a cause is known within "
            "a minute. A band that stays is worth a repair: open Incidents for that kind.",
        ),
        curves(
            "Ranks by health",
            Query(f"max by (health) (lightkeeper_ranks{{{MONITOR}}}) > 0", "{{health}}"),
            stacked=True,
            unit="suffix: ranks",
            width=7,
            height=7,
            colours={health: colour for health, (_, colour) in HEALTH.items()},
            links=more("Replica groups", "lightkeeper-groups"),
            says="Yellow ranks wait for others. One red rank among yellow ones is the one to look "
            "at. Many unreachable at once: first the network between them and the monitor.",
        ),
        curves(
            "Tokens a second",
            Query(f"max(sum by (instance) ({tokens}))", "tokens/s"),
            unit="short",
            width=4,
            height=7,
            colours={"tokens/s": BLUE},
            empty="the job reports no tokens",
            says="Tokens trained on, all groups together, over the last minute.",
        ),
        curves(
            "Loss",
            Query(f"max(lightkeeper_job_loss{{{MONITOR}}})", "median of ranks"),
            floor=None,
            width=3,
            height=7,
            colours={"median of ranks": GREY},
            empty="the job reports no loss",
            says="Median of the losses that the ranks last reported. One that jumps up and stays: "
            "look at the Rank dashboard for the ranks whose loss it is.",
        ),
    ]  # fmt: skip
