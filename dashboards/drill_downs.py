"""What the fleet dashboard links to: incidents, groups, stragglers, one rank, the keeper."""

from __future__ import annotations

from typing import Final, Unpack

from lightkeeper.dashboards.panels import (
    Board,
    Cells,
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
    EVICTION,
    GROUP_STATE,
    INCIDENT,
    KEEPER_STATE,
    MEMBER,
    NO_LIGHTHOUSE,
    NOT_SEEN,
    OF_JOB,
    OF_MONITOR,
    OUTCOME,
    PHASES,
    PROCESS,
    SELF_HEALTH,
    SEVERITY,
    UNSEEN,
    ZERO,
    age_of,
    called,
    chosen_ranks,
    events,
    grown,
    grp,
    keeper_state,
    mon,
    on_host,
    or_none,
    own,
    worst_first,
)

_GROUP: Final = Cells("group", 130, label="replica_group", links=group_links())
_RANK: Final = Cells("rank", 60, links=rank_links())
_HOST: Final = Cells("host", 150, links=host_links())

# -- incidents: what went wrong, what was done about it, how fast, and what it cost -------------


def incident_table(
    title: str, chosen: str, began: str, *, says: str, **shape: Unpack[PanelShape]
) -> Json:
    """Incidents that match `chosen`, newest first, with links to their pages; `began`: the unit of
    that time. Without a monitor one row that says so: nobody looks.
    """
    by = "incident, kind, severity, state, replica_group, rank, host, did"
    seen = f"max by ({by}) ({mon('incident_first_seen_timestamp_seconds', chosen)})"
    story = {"Story and evidence": "${monitor_url}/incidents/${__value.text}"}
    return rows(
        title,
        Cells("began", 170, unit=began,
               expr=f"1000 * ({seen} or {called(f'{UNSEEN} * time()', 'state', NOT_SEEN)})"),
        Cells("state", 150, values=INCIDENT),
        Cells("kind", 120),
        Cells("severity", 90, values=SEVERITY),
        _GROUP, _RANK, _HOST,
        Cells("eviction", 200, label="did", values=EVICTION, prefix="held: "),
        Cells("incident", links=story),
        sort="began", says=says, **shape,
    )  # fmt: skip


_WEIGHTS: Final = {
    "broken": ("broken", "red"), "leaving": ("leaving", "blue"), "slow": ("slow", "yellow"),
}  # fmt: skip
_WHAT: Final = [
    incident_table(
        "Incidents, open and of the last hour", 'state!=""', "dateTimeAsIso",
        width=24, height=9, empty="no incident",
        says="At most 50, newest first. Click one for its story: who did it, how it is known, "
        "what was done. Older ones: `lightkeeper incidents list --since 7d`.",
    ),
    rows(
        "Suspects",
        Cells("", expr=f"max by (replica_group, rank, host, kind, role) ({grp('rank_suspect')})"),
        _GROUP, _RANK, _HOST, Cells("kind", 120), Cells("role"),
        width=10, height=7, empty="nobody is suspected",
        says="Culprits of open incidents, and candidates where no culprit can be named. Click "
        "the rank for its page, stacks and flight record, through the monitor.",
    ),
    rows(
        "What machines say",
        Cells("since", 170, unit="dateTimeAsIso", expr="1000 * max by (host, witness, code, "
               f"weight) ({mon('host_testimony_since_timestamp_seconds')})"),
        _HOST, Cells("weight", 90, values=_WEIGHTS), Cells("witness", 150), Cells("code"),
        sort="since", width=14, height=7, empty="no machine says anything",
        says="What hosts or the cluster say of a host: a GPU that fell off the bus, a drain. None "
        "is accused by that alone; an incident there at the same time is likely its work.",
    ),
]  # fmt: skip

_EVICTED: Final = f"round({grown(mon('evictions_total'), by='kind, outcome')}) > 0"
_DONE: Final = [
    rows(
        "Evictions",
        Cells("kind", 150),
        Cells("outcome", values=OUTCOME),
        Cells("in the shown time", 140, decimals=0,
               expr=f"{_EVICTED} or {called(ALONE, 'outcome', NO_LIGHTHOUSE)}"),
        sort="in the shown time", width=8, empty="nobody was evicted",
        says="One that failed: the group still holds the others up; end its processes yourself. "
        "The same kind again and again: look for one host behind it, and quarantine that.",
    ),
    curves(
        "Held back, by guard",
        Query(or_none(f"max by (guard) ({mon('holding')}) > 0", "guard", acts=True), "{{guard}}"),
        stacked=True, width=8,
        says="Firing incidents whose eviction a guard holds back: it is a person's turn. A guard "
        "that always holds is set too tight, or right: docs/eviction.md explains each.",
    ),
    curves(
        "Quarantine",
        *(Query(f"max({mon(name)})", legend)
          for name, legend in (("quarantined_hosts", "hosts"), ("quarantined_groups", "groups"),
                               ("lemon_hosts", "lemons"))),
        width=8,
        says="Hosts to which no group is admitted, groups that are admitted nowhere, hosts "
        "that fail again and again. `lightkeeper quarantine list` names them: repair those.",
    ),
]  # fmt: skip

_SUM, _COUNT, _BUCKETS = (
    grown(mon(f"incident_stage_seconds_{part}"), by=by)
    for part, by in (("sum", "stage"), ("count", "stage"), ("bucket", "le, stage"))
)
_LOST: Final = grown(mon("ineffective_rank_seconds_total"), by="cause")
_COST: Final = [
    rows(
        "How long each stage took",
        Cells("stage", 120),
        Cells("incidents", 100, expr=f"round({_COUNT}) > 0", decimals=0),
        Cells("mean", 120, expr=f"{_SUM} / ({_COUNT} > 0)", unit="s", decimals=1,
               levels={0.0: "green", 30.0: "orange", 120.0: "red"}),
        Cells("none took more than", expr=f"histogram_quantile(1, {_BUCKETS})", unit="s"),
        sort="mean", height=9, empty="no incident in this time",
        says="detect: first seen to firing. decide: to the request to evict. leave: out of the "
        "quorum; long: the Lighthouse's kill did not work, see docs/eviction.md. recover: the "
        "survivors commit. rejoin: the group is back; long: the launcher or the checkpoint.",
    ),
    rows(
        "Lost rank-seconds by cause",
        Cells("cause", 180),
        Cells("lost", expr=f"{_LOST} > 0", unit="s", decimals=1, gauge=True,
               levels={0.0: "orange"}),
        sort="lost", height=9, empty="none lost",
        says="What the shown time cost, by cause. The longest bar is worth your work: a kind "
        "of incident, starting, recovering, or what nobody can explain.",
    ),
]  # fmt: skip

# -- replica groups: which one is behind, out of the quorum, or healing again and again ---------

_STATE: Final = grp("group_state")
_LINKS: Final = group_links(series=True)
_LEGEND: Final = "{{replica_group}}"


def _of_worst(expr: str) -> str:
    """One series for each of the `$topn` groups in the worst state."""
    return worst_first(expr, "replica_group", f"max_over_time({_STATE}[$__range] @ end())")


_NOWHERE: Final = f"{_STATE} * 0 - 1 unless on () {mon('lighthouse_up')}"
_BEHIND: Final = f"scalar(max({mon('group_step')})) - {grp('group_step')}"
_GROUPS: Final = [
    states(
        "State of each group", Query(_of_worst(_STATE), _LEGEND), values=GROUP_STATE,
        height=11, links=_LINKS,
        says="The worst state of a group's ranks over time, worst groups first. One red "
        "group among yellow ones holds the others up: click it.",
    ),
    states(
        "In the quorum", Query(_of_worst(f"{grp('group_in_quorum')} or {_NOWHERE}"), _LEGEND),
        values=MEMBER, height=11, links=_LINKS,
        says="Membership in the Lighthouse's quorum. A group that is out and stays out "
        "was evicted, quarantined, or does not start: its page says which.",
    ),
    rows(
        "Groups, worst first",
        _GROUP,
        Cells("state", expr=_of_worst(_STATE), values=GROUP_STATE),
        Cells("step", expr=_of_worst(grp("group_step"))),
        Cells("behind", expr=_of_worst(_BEHIND),
               levels={0.0: "green", 5.0: "orange", 50.0: "red"}),
        Cells("works a step", expr=_of_worst(grp("group_busy_seconds")), unit="s", decimals=3),
        Cells("waits a step", expr=_of_worst(grp("group_wait_seconds")), unit="s", decimals=3),
        Cells("heartbeat", expr=_of_worst(age_of(grp("group_last_heartbeat_timestamp_seconds"))),
               unit="s", decimals=1, levels={0.0: "green", 5.0: "orange", 30.0: "red"}),
        sort="state", width=24, height=9, empty="no group",
        says="One that is behind and does not catch up is stuck. An old heartbeat: its manager is "
        "gone or cut off; a young one proves nothing: a hung group still sends them.",
    ),
]  # fmt: skip
_PACE: Final = [
    curves(
        "Steps a second, by group",
        Query(_of_worst(f"rate({grp('group_commits_total')}[$__rate_interval])"), _LEGEND),
        unit="suffix: /s", width=9, many=True, links=_LINKS, empty="no group reports steps",
        says="Committed steps a second. Groups of one quorum go together; a line that parts "
        "from the others is a group that left or heals. All fall: see Stragglers.",
    ),
    curves(
        "Attempts that did not commit",
        Query(f"{_of_worst(events(grp('group_commit_failures_total'), 'replica_group'))} > 0",
              _LEGEND),
        bars=True, width=8, many=True, empty="none", links=_LINKS,
        says="Attempts that ended without a commit. A single group: it is sick. All at once: a "
        "quorum changed while they stepped.",
    ),
    curves(
        "Longest part of a recovery",
        *(Query(f"max({grp(f'group_last_{name}_seconds')})", part)
          for part, name in (("load", "checkpoint_load"), ("apply", "checkpoint_apply"),
                             ("staging", "checkpoint_staging"), ("reconfigure", "reconfigure"))),
        unit="s", width=7, empty="no recovery yet, or not TorchFT",
        says="Seconds of the slowest group's last recovery, by part. 'load' large: the "
        "network between groups, or a large model; 'reconfigure': building process groups.",
    ),
]  # fmt: skip

# -- stragglers: which ranks work longest while the others wait ---------------------------------

_BUSY: Final = grp("rank_busy_seconds")
_MEDIAN: Final = mon("fleet_busy_seconds", 'stat="median"')
_RATIO: Final = f"{_BUSY} / on (cluster, namespace, instance) group_left () {_MEDIAN}"
_BY: Final = "replica_group, rank"
# but for a moment or two
_LONGEST: Final = f"quantile_over_time(0.95, {_BUSY}[$__range] @ end())"
_USUAL: Final = f"1000 / scalar(max(max_over_time({_MEDIAN}[$__range] @ end())))"
_BUSIEST: Final = f"topk($topn, max by ({_BY}) ({_BUSY}))"
_SLOW: Final = [
    heat(
        "Own work of the slowest ranks, against the median",
        Query(worst_first(_RATIO, _BY, _LONGEST, _USUAL), "{{replica_group}}.{{rank}}"),
        unit="suffix:x the median", value="times the median", bounds=(0.8, 1.8),
        width=24, height=12, empty="no rank reports steps", links=rank_links(series=True),
        says="A row for each of the ranks that work longest. A red row is a slow rank, red rows "
        "of one group a slow host, a red column a slow moment of all. Click for the rank's page.",
    ),
    rows(
        "Slowest ranks now",
        _GROUP, _RANK,
        Cells("works a step", expr=_BUSIEST, unit="s", decimals=3),
        Cells("times the median", expr=f"max by ({_BY}) ({_RATIO}) and {_BUSIEST}", decimals=2,
               levels={0.0: "green", 1.2: "orange", 1.5: "red"}),
        Cells("waits a step", unit="s", decimals=3,
               expr=f"max by ({_BY}) ({grp('rank_wait_seconds')}) and {_BUSIEST}"),
        sort="works a step", height=10, empty="nobody commits, or no rank reports steps",
        says="Ranks by their own work a step. Works long and waits little: the straggler. "
        "Click its number for stacks; its host is on its page.",
    ),
    curves(
        "Own work in a step",
        Query(f"max by (stat) ({mon('fleet_busy_seconds')})", "{{stat}}"),
        unit="s", height=10, empty="nobody commits, or no rank reports steps",
        colours={"max": "red", "p99": "orange", "median": "green", "min": "blue"},
        says="Seconds of a step in which ranks do not wait. Red above green is what every step "
        "loses: repair that rank's host. All rise together: the model or the data changed.",
    ),
]  # fmt: skip

# -- rank: what one rank reports about itself, with links to its debug pages --------------------


def _lag(by: str, of: str) -> str:
    """How many collectives the rank of its process group that is the furthest has entered more."""
    front = f"max by ({by}) (lightkeeper_rank_collective_enqueued{{{OF_JOB}, {of}}})"
    return f"{front} - on ({by}) group_right () {own('collective_enqueued', of)}"


_RANK_LEGEND: Final = "{{replica_group}}.{{rank}}"
_RANK_LINKS: Final = rank_links(series=True)
_NO_STEPS: Final = "not scraped, or the job reports no steps: docs/phases.md"
_NO_LOSS: Final = "not scraped, or the job reports no loss"
_HEALTH: Final = f"max by ({_BY}) ({grp('rank_state')}) or 0 * {own('alive')} and on () {ZERO}"
_PHASE: Final = f"topk by ({_BY}) (1, {own('phase_since_timestamp_seconds')})"
_COMMIT: Final = own("last_commit_timestamp_seconds")
_MISSING: Final = (
    f"""{_lag("process_group", 'process_group="torchft"')} or """
    f"""{_lag("replica_group, process_group", 'process_group!="torchft"')}"""
)
_EACH: Final = f"max by ({_BY}, process_group)"
_HEADS: Final = f"topk($topn, {_EACH} ({_MISSING}))"
_LATE: Final = {0.0: "green", 1.0: "orange"}
_WHO: Final = [
    rows(
        "Ranks, the worst first",
        _GROUP, _RANK,
        Cells("", expr=chosen_ranks(grp("rank_suspect"), keep="role")),
        Cells("accused as", 110, label="role", prefix="▲ "),
        Cells("health", 120, expr=chosen_ranks(_HEALTH), values=GROUP_STATE),
        Cells("process", 180, expr=chosen_ranks(own("process_state")), values=PROCESS),
        Cells("in phase", 130, label="phase"),
        Cells("for", 90, expr=f"time() - ({chosen_ranks(_PHASE, keep='phase')})", unit="s",
               decimals=1),
        Cells("collectives behind", 150, expr=chosen_ranks(_MISSING), decimals=0, levels=_LATE),
        Cells("step", 90, expr=chosen_ranks(own("step"))),
        Cells("last commit", 110, expr=f"time() - ({chosen_ranks(_COMMIT)})", unit="s",
               decimals=1),
        Cells("", expr=chosen_ranks(keep="host, pid")),
        _HOST, Cells("pid"),
        sort="health", width=24, height=10, empty="no rank is scraped, and none unwell",
        says="Who is the culprit and who its victim. 'accused as' and 'health' are the monitor's; "
        "the rest says each rank itself. 'collectives behind': its peers have entered so many "
        "that it has not. Click a rank for its page, stacks and records, through the monitor.",
    ),
    rows(
        "Head of the flight record",
        _GROUP, _RANK,
        Cells("process group", label="process_group"),
        Cells("behind its peers", 140, expr=_HEADS, decimals=0, levels=_LATE),
        *(Cells(title, 110, expr=f"{_EACH} ({own(f'collective_{name}')}) and {_HEADS}")
          for title, name in (("entered", "enqueued"), ("left", "completed"), ("inside", "lag"))),
        sort="behind its peers", width=24, height=8,
        empty="not scraped, or in no collective yet",
        says="Sequence ids of the last collective that each rank entered and left, by process "
        "group. One that is behind its peers never came; click it for its flight record.",
    ),
]  # fmt: skip

_SPENT: Final = on_host(f"rate({own('phase_seconds_total')}[$__rate_interval])")
_SHARE: Final = f"avg by (phase) ({_SPENT})"
_ATTEMPTS: Final = on_host(f"increase({own('step_seconds_bucket')}[$__rate_interval])")
_STEP: Final = [
    curves(
        "Phases",
        # a long phase is counted when it ends, all at once
        Query(f"{_SHARE} / scalar(clamp_min(sum({_SHARE}), 1))", "{{phase}}"),
        stacked=True, unit="percentunit", empty=_NO_STEPS, colours=PHASES,
        says="Share of the time in each finished phase. 'communication' is waiting for others. A "
        "gap: it has been in one phase since, which the table above names. 'other': not told.",
    ),
    heat(
        "Step times", Query(f"sum by (le) ({_ATTEMPTS})", "{{le}}"), unit="s", buckets=True,
        value="steps", empty=_NO_STEPS,
        says="How many attempts took how long, of the chosen ranks. A second band above the "
        "first: pauses, as for checkpoints or data; see which phase grows with it.",
    ),
    curves(
        "Loss of each rank", Query(chosen_ranks(own("loss")), _RANK_LEGEND), floor=None,
        many=True, empty=_NO_LOSS, links=_RANK_LINKS,
        says="Loss of each rank. One far from the rest reads bad data or computes wrongly; a "
        "gap is a loss that is not finite: its host may be broken.",
    ),
    states(
        "Loss and gradient finite", Query(chosen_ranks(own("finite")), _RANK_LEGEND),
        values={"0": ("✕ not finite", "red"), "1": ("● finite", "green")},
        empty=_NO_LOSS, links=_RANK_LINKS,
        says="Was the last attempt's loss and gradient finite? Red on one rank alone: "
        "suspect its host. Red everywhere: the model diverges.",
    ),
]  # fmt: skip

# -- keeper: is the monitor itself well, and does anybody receive its notifications? ------------

_OWN_HEALTH: Final = " or ".join(
    "{} * ({} == 1)".format(code, mon("self_health", f'state="{state}"'))
    for code, state in enumerate(SELF_HEALTH)
)
_SCRAPED: Final = f'up{{{OF_JOB}, rank!=""}}'
_ACTS: Final = [
    rows(
        "Monitors of the job",
        Cells("monitor", 170, label="instance"),
        Cells("does it act?", 150, expr=f"max by (instance) ({keeper_state()})",
              values=KEEPER_STATE),
        Cells("", expr=f"max by (instance, version) ({mon('build_info')})"),
        Cells("version", 90),
        Cells("runs since", 170, unit="dateTimeAsIso",
               expr=f"1000 * max by (instance) (process_start_time_seconds{OF_MONITOR})"),
        Cells("ranks", expr=f"sum by (instance) ({mon('ranks')})"),
        height=6, empty=NOT_SEEN,
        says="Two monitors of a job share a store: one acts, the other stands by. Their "
        "versions should be the same.",
    ),
    curves(
        "Ranks' pages that Prometheus reads",
        Query(f"sum({_SCRAPED})", "read"),
        Query(f"count({_SCRAPED} == 0) or 0 * max({_SCRAPED})", "not read"),
        stacked=True, height=6, empty="Prometheus is given no ranks to scrape",
        colours={"read": "green", "not read": "red"},
        says="Ranks that the monitor lists and Prometheus scrapes. Those not read: a firewall, "
        "a token, TLS. Only the Rank dashboard needs them.",
    ),
    states(
        "Does it act?", Query(f"max by (instance) ({keeper_state()})", "{{instance}}"),
        values=KEEPER_STATE, height=6,
        says="A gap: it was down, and training unwatched. Paused for long: `lightkeeper resume`. "
        "Lighthouse away: no quorum forms and nobody is evicted until you start it again.",
    ),
    states(
        "Its own health", Query(f"max by (instance) ({_OWN_HEALTH})", "{{instance}}"), height=6,
        values={str(code): said for code, said in enumerate(SELF_HEALTH.values())},
        says="How far it trusts itself, over time. 'cut off': look at its network. 'late', "
        "'starved': at its CPU. 'cannot write': at its disk. It evicts nobody meanwhile.",
    ),
]  # fmt: skip

_TICKS: Final = f"sum by (le) (rate({mon('tick_duration_seconds_bucket')}[$__rate_interval]))"
_WORKS: Final = [
    curves(
        "Ticks of the monitor",
        Query(f"histogram_quantile(0.95, {_TICKS})", "95 % take"),
        Query(f"max({mon('tick_lateness_seconds')})", "begin late by"),
        unit="s", colours={"95 % take": "green", "begin late by": "orange"},
        says="How long a tick takes and how late it begins. A late monitor doubts itself and "
        "evicts nobody: give it CPU, poll through /v1/host, or take a longer --tick.",
    ),
    curves(
        "Queues",
        Query(or_none(f"max by (queue) ({mon('queue_length')})", "queue"), "{{queue}}"),
        says="What waits to be done, by queue. One that grows and does not shrink: what it "
        "waits for (disk, scheduler, receiver of messages) is stuck.",
    ),
    curves(
        "Polls that failed",
        Query(or_none(events(mon("poll_failures_total"), "reason"), "reason"), "{{reason}}"),
        bars=True, width=8,
        says="Polls of ranks without a usable answer, by reason. All at once: the network. "
        "A few that stay: those ranks' WorkerServers; see 'Ranks by health' on Fleet.",
    ),
    curves(
        "Failures of its own",
        Query(f"{events(mon('store_errors_total'), '')} or {ZERO}", "store"),
        Query(or_none(events(mon("detector_failures_total"), "detector"), "detector"),
              "detector {{detector}}"),
        Query(or_none(events(mon("part_failures_total"), "part"), "part"), "part {{part}}"),
        bars=True, width=8,
        says="Writes that the store did not take: look at its disk. Crashes of detectors (their "
        "fault is unknown meanwhile) and of other parts: report the traceback in the log.",
    ),
    curves(
        "Messages to people",
        Query(or_none(events(mon("notifications_total"), "sink, outcome"), "sink"),
              "{{sink}} {{outcome}}"),
        bars=True, width=8,
        says="Sent, failed and dropped by sink. Failing: `lightkeeper check notify` says why.",
    ),
]  # fmt: skip

INCIDENTS: Final = Board(
    "incidents", "What went wrong, who did it, what the keeper did or held back, and what it cost.",
    {"What went wrong?": _WHAT, "What was done, and what held it back?": _DONE,
     "How fast, and what did it cost?": _COST},
)  # fmt: skip
GROUPS: Final = Board(
    "groups", "Which replica group is out, behind, slow or healing. The worst come first: 'Show at "
    "most' says how many, 'Group' picks them by name.",
    {"How are they?": _GROUPS, "Do they keep up, and what do recoveries take?": _PACE},
)  # fmt: skip
STRAGGLERS: Final = Board(
    "stragglers", "Which rank makes the others wait, since when, and how much it costs. A fleet "
    "runs at the pace of its slowest rank.",
    {"Which ranks, since when, and by how much?": _SLOW},
)  # fmt: skip
RANK: Final = Board(
    "rank", "One rank, or a few, by their own account. Choose group and rank above; 'All' shows "
    "the worst. Its data come from the ranks' own pages, which Prometheus scrapes through the "
    "monitor's list.",
    {"Who is it, and what does it do?": _WHO, "What does it do in a step, is it sound?": _STEP},
)  # fmt: skip
KEEPER: Final = Board(
    "keeper", "Is the monitor well: in time, seeing, deciding, remembering, heard? A sick one "
    "doubts itself and evicts nobody.",
    {"Does it act, and is it well?": _ACTS,
     "Does it see and decide in time, and is it heard?": _WORKS},
)  # fmt: skip
