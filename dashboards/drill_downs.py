"""What the fleet dashboard links to: incidents, groups, stragglers, one rank, the keeper."""

from __future__ import annotations

from typing import Final, Unpack

from lightkeeper.dashboards.panels import (
    Board,
    ColumnStyle,
    Json,
    PanelShape,
    Query,
    curves,
    group_links,
    heat,
    host_links,
    rank_links,
    rows,
    states,
)
from lightkeeper.dashboards.selectors import (
    ALONE,
    BLUE,
    GREEN,
    GREY,
    GROUP,
    GROUP_STATE,
    KEEPER_STATE,
    MEMBER,
    MONITOR,
    NO_LIGHTHOUSE,
    NOT_SEEN,
    ORANGE,
    PLACE,
    PROCESS,
    RANK,
    RED,
    SELF_HEALTH,
    SEVERITY,
    YELLOW,
    ZERO,
    age,
    called,
    chosen_ranks,
    events,
    grown,
    keeper,
    on_host,
    or_none,
    or_unseen,
    worst_first,
)

# -- incidents: what went wrong, what was done about it, how fast, and what it cost -------------

_SEEN: Final = "lightkeeper_incident_first_seen_timestamp_seconds"
_HOST: Final = ColumnStyle("host", links=host_links(), width=150)


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
) -> Json:
    """Incidents that match `chosen`, newest first, with links to their pages."""
    by = "incident, kind, severity, state, replica_group, rank, host, did"
    states = {
        "firing": ("▲ firing", RED), "evicting": ("▼ evicting", ORANGE),
        "pending": ("○ pending", GREY), "resolved": ("✓ resolved", GREEN),
        NOT_SEEN: (f"✕ {NOT_SEEN}", RED),
    }  # fmt: skip
    done = {
        "watch_only": ("○ nothing: it watches only", GREY),
        "already_gone": ("○ nothing: it left by itself", GREY),
        "decided": ("decided", BLUE), "preparing": ("preparing", BLUE),
        "asking": ("under way", BLUE), "interrupted": ("interrupted", ORANGE),
        "confirmed": ("● evicted", GREEN), "failed": ("✕ failed", RED),
        "abandoned": ("no longer needed", GREY),
    }  # fmt: skip
    story = {"Story and evidence": "${monitor_url}/incidents/${__value.text}"}
    return rows(
        title,
        [or_unseen(f"max by ({by}) ({_SEEN}{{{chosen}}}) * 1000", "state")],
        [
            began,
            ColumnStyle("state", values=states, width=150),
            ColumnStyle("kind", width=120),
            ColumnStyle("severity", values=SEVERITY, width=90),
            ColumnStyle("replica_group", "group", links=group_links(series=False), width=130),
            ColumnStyle("rank", links=rank_links(series=False), width=70),
            _HOST,
            ColumnStyle("did", "eviction", values=done, prefix="held by ", width=200),
            ColumnStyle("incident", links=story),
        ],
        sort="began",
        says=says,
        **shape,
    )


def _what() -> list[Json]:
    return [
        incident_table(
            "Incidents, open and of the last hour",
            MONITOR,
            ColumnStyle("Value", "began", unit="dateTimeAsIso", width=170),
            width=24,
            height=9,
            empty="no incident",
            says="At most 50, newest first. Click one for its story: who did it, how it is known, "
            "what was done. Older ones: `lightkeeper incidents list --since 7d`.",
        ),
        rows(
            "Suspects",
            [f"max by (replica_group, rank, host, kind, role) (lightkeeper_rank_suspect{{{GROUP}}})"],
            [
                ColumnStyle("replica_group", "group", width=130),
                ColumnStyle("rank", links=rank_links(series=False), width=70),
                _HOST,
                ColumnStyle("kind", width=120),
                ColumnStyle("role"),
            ],
            hidden=("Value",),
            width=10,
            height=7,
            empty="nobody is suspected",
            says="Culprits of open incidents, and candidates where no culprit can be named; "
            "victims are not among them. Click the rank for its page, stacks and flight record, "
            "through the monitor.",
        ),
        _machines(),
    ]


def _machines() -> Json:
    since = f"lightkeeper_host_testimony_since_timestamp_seconds{{{MONITOR}}}"
    weights = {"broken": ("broken", RED), "leaving": ("leaving", BLUE), "slow": ("slow", YELLOW)}
    return rows(
        "What machines say",
        [f"max by (host, witness, code, weight) ({since}) * 1000"],
        [
            ColumnStyle("Value", "since", unit="dateTimeAsIso", width=170),
            _HOST,
            ColumnStyle("weight", values=weights, width=90),
            ColumnStyle("witness", width=150),
            ColumnStyle("code"),
        ],
        sort="since",
        width=14,
        height=7,
        empty="no machine says anything",
        says="Hosts that testify against themselves, or against which the cluster does: a GPU that "
        "fell off the bus, a throttled core, a drain. None is accused by that alone; an incident "
        "at the same time on that host is likely its work.",
    )


def _done() -> list[Json]:
    evicted = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="kind, outcome")
    held = f"max by (guard) (lightkeeper_holding{{{MONITOR}}}) > 0"
    outcomes = {
        "gone": ("● evicted", GREEN), "left": ("◐ out of the quorum only", ORANGE),
        "failed": ("✕ failed", RED), NO_LIGHTHOUSE: (f"○ {NO_LIGHTHOUSE}", GREY),
    }  # fmt: skip
    quarantined = {"hosts": "quarantined_hosts", "groups": "quarantined_groups",
                   "lemons": "lemon_hosts"}  # fmt: skip
    return [
        rows(
            "Evictions",
            [f"round({evicted}) > 0 or {called(ALONE, 'outcome', NO_LIGHTHOUSE)}"],
            [
                ColumnStyle("kind", width=150),
                ColumnStyle("outcome", values=outcomes),
                ColumnStyle("Value", "in the shown time", decimals=0, width=140),
            ],
            sort="in the shown time",
            width=8,
            empty="nobody was evicted",
            says="One that failed: the group still holds the others up; open its incident and end "
            "its processes yourself. The same kind again and again: look for one host behind it, "
            "and quarantine that.",
        ),
        curves(
            "Held back, by guard",
            Query(or_none(held, "guard", acts=True), "{{guard}}"),
            stacked=True,
            width=8,
            floor=0,
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


def _cost() -> list[Json]:
    total, count, buckets = (
        grown(f"lightkeeper_incident_stage_seconds_{part}{{{MONITOR}}}", by=by)
        for part, by in (("sum", "stage"), ("count", "stage"), ("bucket", "le, stage"))
    )
    lost = grown(f"lightkeeper_ineffective_rank_seconds_total{{{MONITOR}}}", by="cause")
    return [
        rows(
            "How long each stage took",
            [f"round({count}) > 0", f"{total} / ({count} > 0)",
             f"histogram_quantile(1, {buckets})"],
            [
                ColumnStyle("stage", width=120),
                ColumnStyle("Value #A", "incidents", decimals=0, width=100),
                ColumnStyle("Value #B", "mean", unit="s", decimals=1,
                            levels={0.0: GREEN, 30.0: ORANGE, 120.0: RED}, width=120),
                ColumnStyle("Value #C", "none took more than", unit="s"),
            ],
            sort="mean",
            width=12,
            height=9,
            empty="no incident in this time",
            says="detect: first seen to firing. decide: to the request to evict. leave: out of the "
            "quorum; long: the Lighthouse's kill did not work, see docs/eviction.md. recover: the "
            "survivors commit. rejoin: the group is back; long: the launcher or the checkpoint. "
            "Without a keeper TorchFT's defaults lose the job after about 120 s.",
        ),
        rows(
            "Lost rank-seconds by cause",
            [f"{lost} > 0"],
            [
                ColumnStyle("cause", width=180),
                ColumnStyle("Value", "lost", unit="s", decimals=0, levels={0.0: ORANGE},
                            gauge=True),
            ],
            sort="lost",
            width=12,
            height=9,
            empty="none lost",
            says="What the shown time cost, by cause. The longest bar is worth your work: a kind "
            "of incident, starting, recovering, or what nobody can explain.",
        ),
    ]  # fmt: skip


# -- replica groups: which one is behind, out of the quorum, or healing again and again ---------

_STATE: Final = f"lightkeeper_group_state{{{GROUP}}}"
_GROUP_LINKS: Final = group_links(series=True)
_GROUP_LEGEND: Final = "{{replica_group}}"


def _of_worst(expr: str) -> str:
    """One series for each of the `$topn` groups in the worst state."""
    return worst_first(expr, "replica_group", _STATE)


def groups_board() -> Board:
    return Board(
        uid="lightkeeper-groups",
        title="Lightkeeper: replica groups",
        about="Which replica group is out, behind, slow or healing. With many groups the worst "
        "come first: 'Show at most' says how many, 'Group' picks them by name.",
        rows=(
            ("How are they?", _groups_now()),
            ("Do they keep up, and what do recoveries take?", _pace()),
        ),
    )


def _groups_now() -> list[Json]:
    member = f"lightkeeper_group_in_quorum{{{GROUP}}}"
    nowhere = f"{_STATE} * 0 - 1 unless on () lightkeeper_lighthouse_up{{{MONITOR}}}"
    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    beat = f"lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}}"
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
            Query(_of_worst(f"{member} or {nowhere}"), _GROUP_LEGEND),
            values=MEMBER,
            height=11,
            links=_GROUP_LINKS,
            says="Membership in the Lighthouse's quorum. A group that is out and stays out "
            "was evicted, quarantined, or does not start: its page says which.",
        ),
        rows(
            "Groups, worst first",
            [
                _of_worst(expr)
                for expr in (
                    _STATE,
                    f"lightkeeper_group_step{{{GROUP}}}",
                    f"{front} - lightkeeper_group_step{{{GROUP}}}",
                    f"lightkeeper_group_busy_seconds{{{GROUP}}}",
                    f"lightkeeper_group_wait_seconds{{{GROUP}}}",
                    age(beat),
                )
            ],
            [
                ColumnStyle("replica_group", "group", links=group_links(series=False)),
                ColumnStyle("Value #A", "state", values=GROUP_STATE),
                ColumnStyle("Value #B", "step"),
                ColumnStyle("Value #C", "behind", levels={0.0: GREEN, 5.0: ORANGE, 50.0: RED}),
                ColumnStyle("Value #D", "works a step", unit="s", decimals=3),
                ColumnStyle("Value #E", "waits a step", unit="s", decimals=3),
                ColumnStyle("Value #F", "heartbeat", unit="s", decimals=1,
                            levels={0.0: GREEN, 5.0: ORANGE, 30.0: RED}),
            ],
            hidden=("_order",),
            sort="state",
            width=24,
            height=9,
            empty="no group",
            says="Each group now. Click a group for its page, or for the dashboard of its ranks. "
            "One that is behind and does not catch up is stuck. An old heartbeat: its manager is "
            "gone or cut off; a young one proves nothing: a hung group still sends them.",
        ),
    ]  # fmt: skip


def _pace() -> list[Json]:
    commits = f"rate(lightkeeper_group_commits_total{{{GROUP}}}[$__rate_interval])"
    failed = events(f"lightkeeper_group_commit_failures_total{{{GROUP}}}", "replica_group")
    parts = {"load": "checkpoint_load", "apply": "checkpoint_apply",
             "staging": "checkpoint_staging", "reconfigure": "reconfigure"}  # fmt: skip
    return [
        curves(
            "Steps a second, by group",
            Query(_of_worst(commits), _GROUP_LEGEND),
            unit="suffix: steps/s",
            width=9,
            many=True,
            links=_GROUP_LINKS,
            says="Committed steps a second. Groups of one quorum go together; a line that parts "
            "from the others is a group that left or heals. All fall: see Stragglers.",
        ),
        curves(
            "Attempts that did not commit",
            Query(f"({_of_worst(failed)}) > 0", _GROUP_LEGEND),
            bars=True,
            width=8,
            many=True,
            empty="none",
            links=_GROUP_LINKS,
            says="Attempts that ended without a commit. A single group: it is sick. All at once: a "
            "quorum changed while they stepped.",
        ),
        curves(
            "Longest part of a recovery",
            *[
                Query(f"max(lightkeeper_group_last_{name}_seconds{{{GROUP}}})", part)
                for part, name in parts.items()
            ],
            unit="s",
            width=7,
            empty="no recovery yet, or not TorchFT",
            says="Seconds of the slowest group's last recovery, by part. 'load' large: the "
            "network between groups, or a large model; 'reconfigure': building process groups.",
        ),
    ]


# -- stragglers: which ranks work longest while the others wait ---------------------------------

_BY_RANK: Final = "replica_group, rank"
_FLEET: Final = "lightkeeper_fleet_busy_seconds"
_BUSY: Final = f"lightkeeper_rank_busy_seconds{{{GROUP}}}"
_RATIO: Final = (
    f"{_BUSY} / on (cluster, namespace, instance) group_left () "
    f'{_FLEET}{{{MONITOR}, stat="median"}}'
)


def stragglers_board() -> Board:
    return Board(
        uid="lightkeeper-stragglers",
        title="Lightkeeper: stragglers",
        about="Which rank makes the others wait, since when, and how much it costs. A fleet runs "
        "at the pace of its slowest rank.",
        rows=(("Which ranks, since when, and by how much?", _slow()),),
    )


def _slow() -> list[Json]:
    stats = {"slowest rank": ("max", RED), "99 % of ranks": ("p99", ORANGE),
             "median": ("median", GREEN), "fastest": ("min", BLUE)}  # fmt: skip
    busy = f"topk($topn, max by ({_BY_RANK}) ({_BUSY}))"
    return [
        heat(
            "Own work of the slowest ranks, against the median",
            Query(worst_first(_RATIO, _BY_RANK, _BUSY, 1000), "{{replica_group}}.{{rank}}"),
            unit="suffix:x the median",
            value="times the median",
            bounds=(0.8, 1.8),
            width=24,
            height=12,
            empty="no rank reports steps",
            links=rank_links(series=True),
            says="A row for each of the ranks that worked longest within the shown time. A red "
            "row is a slow rank, red rows of one group a slow host, a red column a slow moment "
            "of all. Click a cell for the rank's page and stacks.",
        ),
        rows(
            "Slowest ranks now",
            [
                busy,
                f"max by ({_BY_RANK}) ({_RATIO}) and {busy}",
                f"max by ({_BY_RANK}) (lightkeeper_rank_wait_seconds{{{GROUP}}}) and {busy}",
            ],
            [
                ColumnStyle("replica_group", "group", width=150),
                ColumnStyle("rank", links=rank_links(series=False), width=70),
                ColumnStyle("Value #A", "works a step", unit="s", decimals=3),
                ColumnStyle("Value #B", "times the median", decimals=2,
                            levels={0.0: GREEN, 1.2: ORANGE, 1.5: RED}),
                ColumnStyle("Value #C", "waits a step", unit="s", decimals=3),
            ],
            sort="works a step",
            height=10,
            empty="nobody commits, or no rank reports steps",
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
            empty="nobody commits, or no rank reports steps",
            colours={name: colour for name, (_, colour) in stats.items()},
            says="Seconds of a step in which ranks work and do not wait. Red above green is what "
            "every step loses: evict that rank's group, or repair its host. All rise together: "
            "the model or the data changed.",
        ),
    ]  # fmt: skip


# -- rank: what one rank reports about itself, with links to its debug pages --------------------

_RANK_LINKS: Final = rank_links(series=True)
_RANK_LEGEND: Final = "{{replica_group}}.{{rank}}"
_NO_STEPS: Final = "the job reports no steps: docs/phases.md"
_WHO: Final = (
    ColumnStyle("replica_group", "group", width=130),
    ColumnStyle("rank", links=rank_links(series=False), width=60),
)


def rank_board() -> Board:
    return Board(
        uid="lightkeeper-rank",
        title="Lightkeeper: rank",
        about="One rank, or a few, by their own account: process, phase, head of the flight "
        "record, step times, loss. Choose group and rank above; 'All' shows the worst. Its data "
        "come from the ranks' own pages, which Prometheus scrapes through the monitor's list.",
        rows=(
            ("Who is it, and what does it do?", _who()),
            ("What does it do in a step, and is it sound?", _step()),
        ),
    )


def _own(name: str) -> str:
    return f"lightkeeper_rank_{name}{{{RANK}}}"


def _who() -> list[Json]:
    by = "replica_group, process_group"
    front = f"max by ({by}) ({_own('collective_enqueued')})"
    behind = f"{front} - on ({by}) group_right () {_own('collective_enqueued')}"
    health = f"lightkeeper_rank_state{{{GROUP}}}"
    seen = f"max by (replica_group, rank) ({health}) or 0 * {_own('alive')} and on () {ZERO}"
    since = f"time() - ({chosen_ranks(_own('phase_since_timestamp_seconds'), keep='phase')})"
    each = "max by (replica_group, rank, process_group)"
    heads = f"topk($topn, {each} ({behind}))"
    return [
        rows(
            "Ranks, the worst first",
            [
                chosen_ranks(seen),
                chosen_ranks(
                    f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}', keep="host, pid"
                ),
                chosen_ranks(_own("process_state")),
                since,
                chosen_ranks(behind),
                chosen_ranks(_own("step")),
                f"time() - ({chosen_ranks(_own('last_commit_timestamp_seconds'))})",
                chosen_ranks(f"lightkeeper_rank_suspect{{{GROUP}}}", keep="role"),
            ],
            [
                *_WHO,
                ColumnStyle("role", "accused as", prefix="▲ ", width=110),
                ColumnStyle("Value #A", "health", values=GROUP_STATE, width=120),
                ColumnStyle("Value #C", "process", values=PROCESS, width=180),
                ColumnStyle("phase", "in phase", width=130),
                ColumnStyle("Value #D", "for", unit="s", decimals=1, width=90),
                ColumnStyle("Value #E", "collectives behind", decimals=0, width=140,
                            levels={0.0: GREEN, 1.0: ORANGE}),
                ColumnStyle("Value #F", "step", width=90),
                ColumnStyle("Value #G", "last commit", unit="s", decimals=1, width=110),
                ColumnStyle("host", links=host_links(), width=150),
                ColumnStyle("pid"),
            ],
            hidden=("Value #B", "Value #H"),
            sort="health",
            width=24,
            height=10,
            empty="no such rank is scraped",
            says="Who is the culprit and who its victim. 'accused as' and 'health' are the "
            "monitor's; the rest says each rank itself. 'collectives behind': its peers have "
            "entered so many that it has not. Click the number of a rank for its page, stacks, "
            "flight record and state, through the monitor: your browser need not reach the rank.",
        ),
        rows(
            "Head of the flight record",
            [
                heads,
                f"{each} ({_own('collective_enqueued')}) and {heads}",
                f"{each} ({_own('collective_completed')}) and {heads}",
                f"{each} ({_own('collective_lag')}) and {heads}",
            ],
            [
                *_WHO,
                ColumnStyle("process_group", "process group"),
                ColumnStyle("Value #A", "behind its peers", decimals=0,
                            levels={0.0: GREEN, 1.0: ORANGE}, width=140),
                ColumnStyle("Value #B", "entered", width=110),
                ColumnStyle("Value #C", "left", width=110),
                ColumnStyle("Value #D", "inside", width=90),
            ],
            sort="behind its peers",
            width=24,
            height=8,
            empty="no rank of those shown was in a collective",
            says="Sequence ids of the last collective that each rank entered and left, by process "
            "group. One that is behind its peers never came; click it for its flight record.",
        ),
    ]  # fmt: skip


def _step() -> list[Json]:
    phase = f"rate({_own('phase_seconds_total')}[$__rate_interval])"
    share = f"avg by (phase) ({on_host(phase)})"
    grew = f"increase({_own('step_seconds_bucket')}[$__rate_interval])"
    return [
        curves(
            "Phases",
            # a long phase is counted when it ends, all at once
            Query(f"{share} / scalar(clamp_min(sum({share}), 1))", "{{phase}}"),
            stacked=True,
            unit="percentunit",
            empty=_NO_STEPS,
            colours={"communication": YELLOW, "forward": GREEN, "backward": BLUE, "other": GREY},
            says="Share of the time in each finished phase, mean of the chosen ranks. "
            "'communication' is waiting for others. A gap: it has been in one phase since, which "
            "the table above names. 'other': the job reports no phases (docs/phases.md).",
        ),
        heat(
            "Step times",
            Query(f"sum by (le) ({on_host(grew)})", "{{le}}"),
            unit="s",
            buckets=True,
            value="steps",
            empty=_NO_STEPS,
            says="How many attempts took how long, of the chosen ranks. A second band above the "
            "first: pauses, as for checkpoints or data; see which phase grows with it.",
        ),
        curves(
            "Loss of each rank",
            Query(chosen_ranks(_own("loss")), _RANK_LEGEND),
            floor=None,
            many=True,
            empty="the job reports no loss",
            links=_RANK_LINKS,
            says="Loss of each rank. One far from the rest reads bad data or computes wrongly; a "
            "gap is a loss that is not finite: its host may be broken.",
        ),
        states(
            "Loss and gradient finite",
            Query(chosen_ranks(_own("finite")), _RANK_LEGEND),
            values={"0": ("✕ not finite", RED), "1": ("● finite", GREEN)},
            empty="the job reports no loss",
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


def _acts() -> list[Json]:
    health = " or ".join(
        f'{code} * (lightkeeper_self_health{{{MONITOR}, state="{state}"}} == 1)'
        for code, state in enumerate(SELF_HEALTH)
    )
    scraped = f'up{{{PLACE}, job_id="$job", rank!=""}}'
    return [
        rows(
            "Monitors of the job",
            [
                f"max by (instance) ({keeper(MONITOR)})",
                f"max by (instance, version) (lightkeeper_build_info{{{MONITOR}}})",
                f"max by (instance) (process_start_time_seconds{{{MONITOR}}}) * 1000",
                f"sum by (instance) (lightkeeper_ranks{{{MONITOR}}})",
            ],
            [
                ColumnStyle("instance", "monitor", width=170),
                ColumnStyle("Value #A", "does it act?", values=KEEPER_STATE, width=150),
                ColumnStyle("version", width=90),
                ColumnStyle("Value #C", "runs since", unit="dateTimeAsIso", width=170),
                ColumnStyle("Value #D", "ranks"),
            ],
            hidden=("Value #B",),
            height=6,
            empty=NOT_SEEN,
            says="Two monitors of a job share a store: one acts, the other stands by. Their "
            "versions should be the same.",
        ),
        curves(
            "Ranks' pages that Prometheus reads",
            Query(f"sum({scraped}) or 0 * max({scraped})", "read"),
            Query(f"count({scraped} == 0) or 0 * max({scraped})", "not read"),
            stacked=True,
            height=6,
            empty="Prometheus is given no ranks to scrape",
            colours={"read": GREEN, "not read": RED},
            says="Ranks that the monitor lists and Prometheus scrapes. Those not read: a firewall, "
            "a token, TLS. Only the Rank dashboard needs them.",
        ),
        states(
            "Does it act?",
            Query(f"max by (instance) ({keeper(MONITOR)})", "{{instance}}"),
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


def _works() -> list[Json]:
    tick = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    slow = f"histogram_quantile(0.95, sum by (le) (rate({tick}[$__rate_interval])))"
    polls, store, detectors, parts, messages = (
        events(f"lightkeeper_{name}_total{{{MONITOR}}}", by)
        for name, by in (
            ("poll_failures", "reason"),
            ("store_errors", ""),
            ("detector_failures", "detector"),
            ("part_failures", "part"),
            ("notifications", "sink, outcome"),
        )
    )
    queues = f"max by (queue) (lightkeeper_queue_length{{{MONITOR}}})"
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
            Query(or_none(queues, "queue"), "{{queue}}"),
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
