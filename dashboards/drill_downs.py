"""What the fleet dashboard links to: incidents, groups, stragglers, one rank, the keeper."""

from __future__ import annotations

from typing import Any, Final, Unpack

from grafana_foundation_sdk.builders import table

from lightkeeper.dashboards.panels import (
    Board,
    ColumnStyle,
    PanelShape,
    Query,
    curves,
    group_links,
    heat,
    rank_links,
    ranking,
    rows,
    states,
)
from lightkeeper.dashboards.selectors import (
    BLUE,
    GREEN,
    GROUP,
    GROUP_STATE,
    KEEPER,
    KEEPER_STATE,
    MEMBER,
    MONITOR,
    ORANGE,
    RANK,
    RED,
    SELF_HEALTH,
    SEVERITY,
    UP,
    YELLOW,
    ZERO,
    chosen_ranks,
    grown,
    on_host,
    or_none,
    told_alone,
    worst_only,
)

# -- incidents: what went wrong, what was done about it, how fast, and what it cost -------------

_SEEN: Final = "lightkeeper_incident_first_seen_timestamp_seconds"


def incidents_board() -> Board:
    return Board(
        uid="lightkeeper-incidents",
        title="Lightkeeper: incidents",
        about="What went wrong, who did it, what the keeper did or held back, how long each "
        "stage took, and how many rank-seconds it cost.",
        rows=(
            ("What went wrong?", _what()),
            ("What was done, and what held it back?", _done()),
            ("How fast, and what did it cost?", _cost()),
        ),
    )


def incident_table(
    title: str, chosen: str, began: ColumnStyle, *, says: str, **shape: Unpack[PanelShape]
) -> table.Panel:
    """Incidents that match `chosen`, newest first, with links to their pages."""
    colours = {severity: (severity, colour) for severity, colour in SEVERITY.items()}
    return rows(
        title,
        [f"max by (incident, kind, severity, state, replica_group) ({_SEEN}{{{chosen}}}) * 1000"],
        [
            began,
            ColumnStyle(
                "incident",
                links={"Story and evidence": "${monitor_url}/incidents/${__value.text}"},
            ),
            ColumnStyle("kind"),
            ColumnStyle("severity", values=colours),
            ColumnStyle("state"),
            ColumnStyle("replica_group", "group"),
        ],
        sort="began",
        says=says,
        **shape,
    )


def _what() -> list[Any]:
    return [
        incident_table(
            "Incidents, open and of the last hour",
            MONITOR,
            ColumnStyle("Value", "began", unit="dateTimeAsIso", width=190),
            width=24,
            height=9,
            empty="no incident",
            says="At most 50, newest first. Click one for its story: who did it, how it is known, "
            "what was done. Older ones: `lightkeeper incidents list --since 7d`.",
        ),
        _machines(),
    ]


def _machines() -> Any:
    since = f"lightkeeper_host_testimony_since_timestamp_seconds{{{MONITOR}}}"
    weights = {"broken": ("broken", RED), "leaving": ("leaving", BLUE), "slow": ("slow", YELLOW)}
    return rows(
        "What machines say",
        [f"max by (host, witness, code, weight) ({since}) * 1000"],
        [
            ColumnStyle("Value", "since", unit="dateTimeAsIso", width=190),
            ColumnStyle("host", links={"The host's page": "${monitor_url}/hosts/${__value.text}"}),
            ColumnStyle("weight", values=weights),
            ColumnStyle("witness"),
            ColumnStyle("code"),
        ],
        sort="since",
        width=24,
        height=6,
        empty="no machine says anything",
        says="Hosts that testify against themselves, or against which the cluster does: a GPU that "
        "fell off the bus, a throttled core, a drain. None is accused by that alone; an incident "
        "at the same time on that host is likely its work.",
    )


def _done() -> list[Any]:
    evicted = f"lightkeeper_evictions_total{{{MONITOR}}}"
    holding = f"sum by (guard) (lightkeeper_holding{{{MONITOR}}}) > 0"
    quarantined = {"hosts": "quarantined_hosts", "groups": "quarantined_groups",
                   "lemons": "lemon_hosts"}  # fmt: skip
    return [
        ranking(
            "Evictions by kind and outcome",
            Query(
                f"{grown(evicted, by='kind, outcome', within='$__range')} or {told_alone('kind')}",
                "{{kind}} {{outcome}}",
            ),
            base=BLUE,
            width=8,
            empty="nobody was evicted",
            says="Evictions of the shown time. One that failed: the group still holds the others "
            "up; open its incident and end its processes yourself. The same kind again and again: "
            "look for one host behind it, and quarantine that.",
        ),
        curves(
            "Held back, by guard",
            Query(or_none(holding, "guard", acts=True), "{{guard}}"),
            bars=True,
            width=8,
            says="Firing incidents on which a guard sits. It is a person's turn: the incident's "
            "page says why, and has the button. A guard that always holds is set too tight, or "
            "right to hold: docs/eviction.md explains each.",
        ),
        curves(
            "Quarantine",
            *[
                Query(f"max(lightkeeper_{name}{{{MONITOR}}})", legend)
                for legend, name in quarantined.items()
            ],
            width=8,
            says="Hosts to which no group is admitted, groups that are admitted nowhere, hosts "
            "that fail again and again. `lightkeeper quarantine list` names them: repair those.",
        ),
    ]


def _cost() -> list[Any]:
    stages, lost = (
        grown(f"lightkeeper_{name}{{{MONITOR}}}", by=by, within="$__range")
        for name, by in (
            ("incident_stage_seconds_bucket", "le, stage"),
            ("ineffective_rank_seconds_total", "cause"),
        )
    )
    return [
        ranking(
            "95 % take less than",
            Query(f"histogram_quantile(0.95, {stages})", "{{stage}}"),
            unit="s",
            base=GREEN,
            levels={30.0: ORANGE, 120.0: RED},
            width=12,
            empty="no incident in this time",
            says="detect: first seen to firing. decide: to the request to evict. leave: out of the "
            "quorum; long: the Lighthouse's kill did not work, see docs/eviction.md. recover: the "
            "survivors commit. rejoin: the group is back; long: the launcher or the checkpoint. "
            "Without a keeper TorchFT's defaults lose the job after about 120 s.",
        ),
        ranking(
            "Lost rank-seconds by cause",
            Query(lost, "{{cause}}"),
            unit="s",
            base=ORANGE,
            width=12,
            empty="none lost",
            says="What the shown time cost, by cause. The longest bar is worth your work: a kind "
            "of incident, starting, recovering, or what nobody can explain.",
        ),
    ]


# -- replica groups: which one is behind, out of the quorum, or healing again and again ---------

_STATE: Final = f"lightkeeper_group_state{{{GROUP}}}"
_GROUP_LINKS: Final = group_links(series=True)
_GROUP_LEGEND: Final = "{{replica_group}}"


def _of_worst(expr: str) -> str:
    """One series for each of the `$topn` groups in the worst state."""
    return worst_only(expr, "instance, replica_group", _STATE)


def groups_board() -> Board:
    return Board(
        uid="lightkeeper-groups",
        title="Lightkeeper: replica groups",
        about="Which replica group is out, behind, slow or healing. With many groups the worst "
        "come first: 'Show at most' says how many, 'Group' picks them by name.",
        rows=(
            ("How are they?", _now()),
            ("Do they keep up, and what do recoveries take?", _pace()),
        ),
    )


def _now() -> list[Any]:
    member = _of_worst(f"lightkeeper_group_in_quorum{{{GROUP}}}")
    lighthouse = f"lightkeeper_lighthouse_up{{{MONITOR}}}"
    nowhere = f"({_of_worst(_STATE)}) * 0 - 1 unless on (instance) {lighthouse}"
    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    return [
        states(
            "State of each group",
            Query(_of_worst(_STATE), _GROUP_LEGEND),
            values=GROUP_STATE,
            height=11,
            links=_GROUP_LINKS,
            says="The worst state of a group's ranks over time, worst groups first. One red "
            "group among yellow ones holds the others up: click it.",
        ),
        states(
            "In the quorum",
            Query(f"{member} or {nowhere}", _GROUP_LEGEND),
            values=MEMBER,
            height=11,
            links=_GROUP_LINKS,
            says="Membership in the Lighthouse's quorum. A group that is out and stays out "
            "was evicted, quarantined, or does not start: its page says which.",
        ),
        rows(
            "Groups, worst first",
            [
                _of_worst(f"max by (instance, replica_group) ({expr})")
                for expr in (
                    _STATE,
                    f"lightkeeper_group_step{{{GROUP}}}",
                    f"{front} - lightkeeper_group_step{{{GROUP}}}",
                    f"lightkeeper_group_busy_seconds{{{GROUP}}}",
                    f"lightkeeper_group_wait_seconds{{{GROUP}}}",
                    f"time() - lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}}",
                )
            ],
            [
                ColumnStyle("replica_group", "group", links=group_links(series=False)),
                ColumnStyle("Value #A", "state", values=GROUP_STATE),
                ColumnStyle("Value #B", "step"),
                ColumnStyle("Value #C", "behind", levels={5.0: ORANGE, 50.0: RED}),
                ColumnStyle("Value #D", "works a step", unit="s", decimals=3),
                ColumnStyle("Value #E", "waits a step", unit="s", decimals=3),
                ColumnStyle(
                    "Value #F", "heartbeat", unit="s", levels={5.0: ORANGE, 30.0: RED}, decimals=1
                ),
            ],
            sort="state",
            width=24,
            height=10,
            empty="no group",
            says="Each group now. Click a group for its page, or for the dashboard of its ranks. "
            "One that is behind and does not catch up is stuck. An old heartbeat: its manager is "
            "gone or cut off; a young one proves nothing: a hung group still sends them.",
        ),
    ]


def _pace() -> list[Any]:
    commits, failed = (
        f"rate(lightkeeper_group_{name}_total{{{GROUP}}}[$__rate_interval])"
        for name in ("commits", "commit_failures")
    )
    parts = {"load": "checkpoint_load", "apply": "checkpoint_apply",
             "staging": "checkpoint_staging", "reconfigure": "reconfigure"}  # fmt: skip
    return [
        curves(
            "Steps a second, by group",
            Query(_of_worst(commits), _GROUP_LEGEND),
            unit="suffix: steps/s",
            width=8,
            links=_GROUP_LINKS,
            says="Committed steps a second. Groups of one quorum go together; a line that parts "
            "from the others is a group that left or heals. All fall: see Stragglers.",
        ),
        curves(
            "Attempts that did not commit",
            Query(_of_worst(failed), _GROUP_LEGEND),
            unit="suffix: steps/s",
            width=8,
            empty="none",
            links=_GROUP_LINKS,
            says="Attempts a second that ended without a commit. A single group: it is sick. "
            "All at once: a quorum changed while they stepped.",
        ),
        curves(
            "Longest part of a recovery",
            *[
                Query(f"max(lightkeeper_group_last_{name}_seconds{{{GROUP}}})", part)
                for part, name in parts.items()
            ],
            unit="s",
            width=8,
            empty="no recovery yet",
            says="Seconds of the slowest group's last recovery, by part. 'load' large: the "
            "network between groups, or a large model; 'reconfigure': building process groups.",
        ),
    ]


# -- stragglers: which ranks work longest while the others wait ---------------------------------

_BY_RANK: Final = "instance, replica_group, rank"
_FLEET: Final = "lightkeeper_fleet_busy_seconds"
_BUSY: Final = f"lightkeeper_rank_busy_seconds{{{GROUP}}}"
_WAIT: Final = f"lightkeeper_rank_wait_seconds{{{GROUP}}}"
_RATIO: Final = f'{_BUSY} / on (instance) group_left () {_FLEET}{{{MONITOR}, stat="median"}}'


def stragglers_board() -> Board:
    return Board(
        uid="lightkeeper-stragglers",
        title="Lightkeeper: stragglers",
        about="Which rank makes the others wait, since when, and how much it costs. A fleet runs "
        "at the pace of its slowest rank.",
        rows=(("Which ranks, since when, and by how much?", _ranks()),),
    )


def _ranks() -> list[Any]:
    stats = {"slowest rank": ("max", RED), "99 % of ranks": ("p99", ORANGE),
             "median": ("median", GREEN), "fastest": ("min", BLUE)}  # fmt: skip
    return [
        heat(
            "Own work of the slowest ranks, against the median",
            Query(worst_only(_RATIO, _BY_RANK, _BUSY), "{{replica_group}}.{{rank}}"),
            unit="suffix:x the median",
            value="times the median",
            bounds=(0.8, 2.0),
            width=24,
            height=12,
            links=rank_links(series=True),
            says="A row for each of the ranks that worked longest within the shown time. A red "
            "row is a slow rank, red rows of one group a slow host, a red column a slow moment "
            "of all. Click a cell for the rank's page and stacks.",
        ),
        rows(
            "Slowest ranks now",
            [
                f"topk($topn, {_BUSY})",
                f"topk($topn, {_RATIO})",
                f"{_WAIT} and on ({_BY_RANK}) topk($topn, {_BUSY})",
            ],
            [
                ColumnStyle("replica_group", "group", width=130),
                ColumnStyle("rank", links=rank_links(series=False), width=70),
                ColumnStyle("Value #A", "works a step", unit="s", decimals=3),
                ColumnStyle(
                    "Value #B",
                    "times the median",
                    levels={1.2: ORANGE, 1.5: RED},
                    base=GREEN,
                    decimals=2,
                ),
                ColumnStyle("Value #C", "waits a step", unit="s", decimals=3),
            ],
            sort="works a step",
            height=10,
            empty="nobody commits",
            says="Ranks by their own work a step. Works long and waits little: the straggler. "
            "Click its number for stacks; its host is on its page.",
        ),
        curves(
            "Own work in a step",
            *[
                Query(f'max({_FLEET}{{{MONITOR}, stat="{stat}"}})', name)
                for name, (stat, _) in stats.items()
            ],
            unit="s",
            height=10,
            colours={name: colour for name, (_, colour) in stats.items()},
            says="Seconds of a step in which ranks work and do not wait. Red above green is what "
            "every step loses: evict that rank's group, or repair its host. All rise together: "
            "the model or the data changed.",
        ),
    ]


# -- rank: what one rank reports about itself, with links to its debug pages --------------------

_RANK_LINKS: Final = rank_links(series=True)
_RANK_LEGEND: Final = "{{replica_group}}.{{rank}}"
_WHO: Final = (
    ColumnStyle("job_id", "job"),
    ColumnStyle("replica_group", "group"),
    ColumnStyle("rank", links=rank_links(series=False)),
)


def rank_board() -> Board:
    return Board(
        uid="lightkeeper-rank",
        title="Lightkeeper: rank",
        about="One rank, or a few, by their own account: phases, step times, the head of the "
        "flight record, loss. Choose group and rank above; 'All' shows the first few. Its data "
        "come from the ranks' own pages, which Prometheus scrapes through the monitor's list.",
        of_ranks=True,
        rows=(
            ("Who is it, and does it live?", _who()),
            ("Which collective is it in?", _collectives()),
            ("What does it do in a step, and is it sound?", _step()),
        ),
    )


def _own(name: str) -> str:
    return f"lightkeeper_rank_{name}{{{RANK}}}"


def _who() -> list[Any]:
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    return [
        rows(
            "Ranks",
            [
                chosen_ranks(info, keep="host, pid"),
                chosen_ranks(_own("alive")),
                chosen_ranks(_own("step")),
                f"time() - ({chosen_ranks(_own('last_commit_timestamp_seconds'))})",
            ],
            [
                *_WHO,
                ColumnStyle("host"),
                ColumnStyle("pid"),
                ColumnStyle("Value #B", "process", values=UP),
                ColumnStyle("Value #C", "step"),
                ColumnStyle(
                    "Value #D",
                    "last commit",
                    unit="s",
                    decimals=1,
                    levels={30.0: ORANGE, 120.0: RED},
                    base=GREEN,
                ),
            ],
            hidden=("Value #A",),
            width=24,
            empty="no such rank is scraped",
            says="Who and where. An old last commit: it hangs, waits or is dead. Click the number "
            "of a rank for its page, stacks, flight record and state, through the monitor: your "
            "browser need not reach the rank.",
        ),
    ]


def _collectives() -> list[Any]:
    lag = _own("collective_lag")
    by = "max by (job_id, replica_group, rank, process_group)"
    unfinished = f"and on (job_id, replica_group, rank, process_group) topk($topn, {by} ({lag}))"
    return [
        rows(
            "Head of the flight record",
            [
                f"{by} ({_own('collective_enqueued')}) {unfinished}",
                f"{by} ({_own('collective_completed')}) {unfinished}",
                f"topk($topn, {by} ({lag}))",
            ],
            [
                *_WHO,
                ColumnStyle("process_group", "process group"),
                ColumnStyle("Value #A", "entered"),
                ColumnStyle("Value #B", "left"),
                ColumnStyle("Value #C", "inside", levels={1.0: ORANGE}),
            ],
            sort="inside",
            width=24,
            height=9,
            empty="no collective seen",
            says="Sequence ids of the last collective that each rank entered and left, by "
            "process group. One rank's 'entered' lower than its peers': it never came; click it "
            "for its flight record.",
        ),
    ]


def _step() -> list[Any]:
    phase = f"rate({_own('phase_seconds_total')}[$__rate_interval])"
    grew = f"increase({_own('step_seconds_bucket')}[$__rate_interval])"
    return [
        curves(
            "Phases",
            Query(f"avg by (phase) ({on_host(phase)})", "{{phase}}"),
            stacked=True,
            unit="percentunit",
            colours={"communication": YELLOW, "forward": GREEN, "backward": BLUE},
            says="Share of the time in each finished phase, mean of the chosen ranks. "
            "'communication' is waiting for others. A gap: it has been in one phase since; "
            "its state page says in which.",
        ),
        heat(
            "Step times",
            Query(f"sum by (le) ({on_host(grew)})", "{{le}}"),
            unit="s",
            buckets=True,
            value="steps",
            says="How many attempts took how long, of the chosen ranks. A second band above the "
            "first: pauses, as for checkpoints or data; see which phase grows with it.",
        ),
        curves(
            "Loss",
            Query(chosen_ranks(_own("loss")), _RANK_LEGEND),
            floor=None,
            empty="not told",
            links=_RANK_LINKS,
            says="Loss of each rank. One far from the rest reads bad data or computes wrongly; a "
            "gap is a loss that is not finite: its host may be broken.",
        ),
        states(
            "Loss and gradient finite",
            Query(chosen_ranks(_own("finite")), _RANK_LEGEND),
            values={"0": ("✕ not finite", RED), "1": ("● finite", GREEN)},
            empty="not told",
            links=_RANK_LINKS,
            says="Was the last attempt's loss and gradient finite? Red on one rank alone: "
            "suspect its host. Red everywhere: the model diverges.",
        ),
    ]


# -- keeper: is the monitor itself well, and does anybody receive its notifications? ------------


def keeper_board() -> Board:
    return Board(
        uid="lightkeeper-keeper",
        title="Lightkeeper: keeper",
        about="Is the monitor well: in time, seeing, deciding, remembering, heard? A sick one "
        "doubts itself and evicts nobody.",
        rows=(
            ("Does it act, and is it well?", _acts()),
            ("Does it see and decide in time, and is it heard?", _works()),
        ),
    )


def _acts() -> list[Any]:
    health = " or ".join(
        f'{code} * (lightkeeper_self_health{{{MONITOR}, state="{state}"}} == 1)'
        for code, state in enumerate(SELF_HEALTH)
    )
    return [
        states(
            "Does it act?",
            Query(f"max by (instance) ({KEEPER})", "{{instance}}"),
            values=KEEPER_STATE,
            height=6,
            says="Each monitor over time. A gap: it was down, and training unwatched. Paused for "
            "long: `lightkeeper resume`. Observing: start it without --observe when you trust it. "
            "Lighthouse away: no quorum forms and nobody is evicted until you start it again.",
        ),
        states(
            "Its own health",
            Query(f"max by (instance) ({health})", "{{instance}}"),
            values={str(code): said for code, said in enumerate(SELF_HEALTH.values())},
            height=6,
            says="How far it trusts itself, over time. 'cut off': look at its network. 'late', "
            "'starved': at its CPU. 'cannot write': at its disk. It evicts nobody meanwhile.",
        ),
    ]


def _works() -> list[Any]:
    tick = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    slow = f"histogram_quantile(0.95, sum by (le) (rate({tick}[$__rate_interval])))"
    polls, store, detectors, parts, messages = (
        grown(f"lightkeeper_{name}_total{{{MONITOR}}}", by=by)
        for name, by in (
            ("poll_failures", "reason"),
            ("store_errors", ""),
            ("detector_failures", "detector"),
            ("part_failures", "part"),
            ("notifications", "sink, outcome"),
        )
    )
    return [
        curves(
            "Ticks of the monitor",
            Query(slow, "95 % take"),
            Query(f"max(lightkeeper_tick_lateness_seconds{{{MONITOR}}})", "begin late by"),
            unit="s",
            colours={"95 % take": GREEN, "begin late by": ORANGE},
            says="How long a tick takes and how late it begins. A late monitor doubts itself and "
            "evicts nobody: give it CPU, poll through /v1/host, or take a longer --tick.",
        ),
        curves(
            "Queues",
            Query(
                or_none(f"sum by (queue) (lightkeeper_queue_length{{{MONITOR}}})", "queue"),
                "{{queue}}",
            ),
            says="What waits to be done, by queue. One that grows and does not shrink: what it "
            "waits for (disk, scheduler, receiver of messages) is stuck.",
        ),
        curves(
            "Polls that failed",
            Query(or_none(polls, "reason"), "{{reason}}"),
            bars=True,
            width=8,
            says="Polls of ranks without a usable answer, by reason. All at once: the network. "
            "A few that stay: those ranks' WorkerServers; see 'Ranks by health' on Fleet.",
        ),
        curves(
            "Failures of its own",
            Query(f"({store}) or {ZERO}", "store"),
            Query(or_none(detectors, "detector"), "detector {{detector}}"),
            Query(or_none(parts, "part"), "part {{part}}"),
            bars=True,
            width=8,
            says="Writes that the store did not take, crashes of detectors (their kind of fault is "
            "unknown meanwhile) and of other parts. Any bar: read the monitor's log and report the "
            "traceback; for the store, look at its disk.",
        ),
        curves(
            "Messages to people",
            Query(or_none(messages, "sink"), "{{sink}} {{outcome}}"),
            bars=True,
            width=8,
            says="Sent, failed and dropped messages by sink. Failing: `lightkeeper check notify` "
            "says why.",
        ),
    ]
