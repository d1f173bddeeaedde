"""Incidents: what went wrong, what was done about it, how fast, and what it cost."""

from __future__ import annotations

from typing import Any, Final, Unpack

from grafana_foundation_sdk.builders import table

from dashboards.colours import BLUE, GREEN, INCIDENT_STATE, ORANGE, RED, SEVERITY
from dashboards.frame import Board
from dashboards.panels import Column, Query, Shape, lines, ranking, rows, states, tile
from dashboards.selectors import MONITOR, ZERO, grown

_SEEN: Final = "lightkeeper_incident_first_seen_timestamp_seconds"


def incidents() -> Board:
    """The dashboard."""
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
    title: str, chosen: str, began: Column, *, says: str, **shape: Unpack[Shape]
) -> table.Panel:
    """Incidents that match `chosen`, newest first, with links to their stories."""
    colours = {severity: (severity, colour) for severity, colour in SEVERITY.items()}
    return rows(
        title,
        [f"max by (incident, kind, severity, state, replica_group) ({_SEEN}{{{chosen}}}) * 1000"],
        [
            began,
            Column(
                "incident",
                links={"Story and evidence": "${monitor_url}/incidents/${__value.text}"},
            ),
            Column("kind"),
            Column("severity", values=colours),
            Column("state"),
            Column("replica_group", "group"),
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
            Column("Value", "began", unit="dateTimeAsIso", width=190),
            width=24,
            height=9,
            empty="no incident",
            says="At most 50, newest first. Click one for its story: who did it, how it is known, "
            "what was done. Older ones: `lightkeeper incidents --since 7d`.",
        ),
        states(
            "Timeline",
            Query(_timeline(), "{{kind}} {{incident}}"),
            values=INCIDENT_STATE,
            width=24,
            height=9,
            empty="no incident in this time",
            links={"Story and evidence": "${monitor_url}/incidents/${__field.labels.incident}"},
            says="Each incident from suspicion to its end, the newest of those in the shown time. "
            "Long red: it fired and nobody acted; click it to see which guard held. Much yellow "
            "that never turns red: thresholds near the job's own noise, see docs/thresholds.md.",
        ),
    ]


def _timeline() -> str:
    """1 pending, 2 firing, 3 evicting, 4 resolved: a series for each incident, the newest."""
    codes = {"pending": 1, "firing": 2, "evicting": 3, "resolved": 4}
    each = [
        f'{code} * ({_SEEN}{{{MONITOR}, state="{state}"}} > bool 0)'
        for state, code in codes.items()
    ]
    code = f"max by (incident, kind) ({' or '.join(each)})"
    newest = f"max by (incident) (max_over_time({_SEEN}{{{MONITOR}}}[$__range] @ end()))"
    return f"{code} and on (incident) topk($topn, {newest})"


def _done() -> list[Any]:
    evicted = f"lightkeeper_evictions_total{{{MONITOR}}}"
    quarantined = {"hosts": "quarantined_hosts", "groups": "quarantined_groups",
                   "lemons": "lemon_hosts"}  # fmt: skip
    return [
        ranking(
            "Evictions by kind and outcome",
            Query(grown(evicted, by="kind, outcome", within="$__range"), "{{kind}}: {{outcome}}"),
            base=BLUE,
            width=8,
            empty="nobody was evicted",
            says="Evictions of the shown time. One that failed: the group still holds the others "
            "up; open its incident and end its processes yourself. The same kind again and again: "
            "look for one host behind it, and quarantine that.",
        ),
        lines(
            "Held back, by guard",
            Query(f"sum by (guard) (lightkeeper_holding{{{MONITOR}}}) > 0", "{{guard}}"),
            bars=True,
            width=8,
            empty="nothing is held",
            says="Firing incidents on which a guard sits. It is a person's turn: the incident's "
            "page says why, and has the button. A guard that always holds is set too tight, or "
            "right to hold: docs/policy.md explains each.",
        ),
        lines(
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
    stages, lost, saved, spent = (
        grown(f"lightkeeper_{name}{{{MONITOR}}}", by=by, within="$__range")
        for name, by in (
            ("incident_stage_seconds_bucket", "le, stage"),
            ("ineffective_rank_seconds_total", "cause"),
            ("saved_rank_seconds_total", ""),
            ("spent_rank_seconds_total", ""),
        )
    )
    return [
        ranking(
            "95 % take less than",
            Query(f"histogram_quantile(0.95, {stages})", "{{stage}}"),
            unit="s",
            base=GREEN,
            levels={30.0: ORANGE, 120.0: RED},
            width=10,
            empty="no incident in this time",
            says="detect: first seen to firing. decide: to the request to evict. leave: out of the "
            "quorum; long: the Lighthouse's kill did not work, see docs/evict.md. recover: the "
            "survivors commit. rejoin: the group is back; long: the launcher or the checkpoint. "
            "Without a keeper TorchFT's defaults lose the job after about 120 s.",
        ),
        ranking(
            "Lost rank-seconds by cause",
            Query(lost, "{{cause}}"),
            unit="s",
            base=ORANGE,
            width=10,
            empty="none lost",
            says="What the shown time cost, by cause. The longest bar is worth your work: a kind "
            "of incident, starting, recovering, or what nobody can explain.",
        ),
        tile(
            "Saved by evictions",
            f"({saved} or {ZERO}) - ({spent} or {ZERO})",
            unit="s",
            decimals=0,
            base=RED,
            levels={0.0: GREEN},
            width=4,
            says="Rank-seconds that evictions saved less what they cost, at least, in the shown "
            "time, by the keeper's own account. Below 0: read `lightkeeper incidents`, and let it "
            "only observe until you know why.",
        ),
    ]
