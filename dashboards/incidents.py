"""Incidents: what went wrong, what was done about it, how fast, and what it cost."""

from __future__ import annotations

from typing import Any

from dashboards.colours import BLUE, GREEN, INCIDENT_STATE, ORANGE, RED, SEVERITY
from dashboards.frame import Board
from dashboards.grids import Column, heat, rows
from dashboards.panels import Query, lines, ranking, states
from dashboards.recurring import BAD, goodput_tile, lost_lines
from dashboards.selectors import MONITOR, grown

_SEEN = "lightkeeper_incident_first_seen_timestamp_seconds"
_PAGE = {"Story and evidence": "${monitor_url}/incidents/${__field.labels.incident}"}
_STAGE = f"lightkeeper_incident_stage_seconds_bucket{{{MONITOR}}}"


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
            ("How fast?", _speed()),
            ("What did it cost?", _cost()),
        ),
    )


def _what() -> list[Any]:
    shown = f"lightkeeper_incidents{{{MONITOR}}}"
    return [
        rows(
            "Incidents, open and of the last hour",
            [
                Query(
                    "max by (incident, kind, severity, state, replica_group) "
                    f"({_SEEN}{{{MONITOR}}}) * 1000"
                )
            ],
            [
                Column("Value", "began", unit="dateTimeAsIso", width=190),
                Column(
                    "incident",
                    links={"Story and evidence": "${monitor_url}/incidents/${__value.text}"},
                ),
                Column("kind"),
                Column("severity", values={one: (one, c) for one, c in SEVERITY.items()}),
                Column("state"),
                Column("replica_group", "group"),
            ],
            sort="began",
            width=16,
            height=9,
            empty="no incident",
            says="At most 50, newest first. Click one for its story: who did it, how it is known, "
            "what was done. Older ones: `lightkeeper incidents --since 7d`.",
        ),
        lines(
            "Open incidents",
            Query(f"sum by (kind) ({shown})", "{{kind}}"),
            bars=True,
            width=8,
            height=9,
            empty="none",
            says="Incidents that are not over, by kind. One that stays open is held back, or "
            "its group does not come back: open it.",
        ),
        states(
            "Timeline",
            Query(_timeline(), "{{kind}} {{incident}}"),
            values=INCIDENT_STATE,
            width=24,
            height=9,
            empty="no incident in this time",
            links=_PAGE,
            says="Each incident from suspicion to its end, the newest of those in the shown "
            "time. Long red: it fired and nobody acted; click it to see which guard held.",
        ),
        lines(
            "Transitions",
            Query(grown(f"lightkeeper_incident_transitions_total{{{MONITOR}}}", by="to"), "{{to}}"),
            bars=True,
            width=24,
            height=7,
            empty="none",
            says="Incidents that entered a state. Many from pending to resolved without firing: "
            "thresholds are near the job's own noise; see docs/thresholds.md.",
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
    held = f"lightkeeper_holds_total{{{MONITOR}}}"
    return [
        ranking(
            "Evictions by outcome",
            Query(grown(evicted, by="outcome", within="$__range"), "{{outcome}}"),
            unit="none",
            base=BLUE,
            levels={},
            width=8,
            empty="nobody was evicted",
            says="How evictions of the shown time ended. Any that failed: the group still holds "
            "the others up; open its incident and end its processes yourself.",
        ),
        ranking(
            "Holds by guard",
            Query(grown(held, by="guard", within="$__range"), "{{guard}}"),
            unit="none",
            base=ORANGE,
            levels={},
            width=8,
            empty="nothing was held back",
            says="Evictions that a guard held back in the shown time. A guard that always holds "
            "is set too tight, or right to hold: docs/policy.md explains each.",
        ),
        lines(
            "Held back now",
            Query(f"sum by (guard) (lightkeeper_holding{{{MONITOR}}}) > 0", "{{guard}}"),
            bars=True,
            width=8,
            empty="nothing is held",
            says="Firing incidents on which a guard sits. It is a person's turn: the incident's "
            "page says why, and has the button.",
        ),
        lines(
            "Evictions by kind",
            Query(grown(evicted, by="kind, outcome"), "{{kind}} {{outcome}}"),
            bars=True,
            empty="nobody was evicted",
            says="Evictions by the kind of incident and how they ended. The same kind again "
            "and again on one host: quarantine it for good.",
        ),
        lines(
            "Quarantine",
            Query(f"max(lightkeeper_quarantined_hosts{{{MONITOR}}})", "hosts"),
            Query(f"max(lightkeeper_quarantined_groups{{{MONITOR}}})", "groups"),
            Query(f"max(lightkeeper_lemon_hosts{{{MONITOR}}})", "lemons"),
            unit="none",
            says="Hosts to which no group is admitted, groups that are admitted nowhere, hosts "
            "that fail again and again. `lightkeeper quarantine list` names them.",
        ),
    ]


def _speed() -> list[Any]:
    per_stage = grown(_STAGE, by="le, stage", within="$__range")
    return [
        ranking(
            "Half of the incidents take less than",
            Query(f"histogram_quantile(0.5, {per_stage})", "{{stage}}"),
            unit="s",
            base=GREEN,
            levels={30.0: ORANGE, 120.0: RED},
            empty="no incident in this time",
            says="detect: first seen to firing. decide: to the request to evict. leave: out of "
            "the quorum. recover: the survivors commit. rejoin: the group is back. Without a "
            "keeper TorchFT's defaults lose the job after about 120 s.",
        ),
        ranking(
            "95 % take less than",
            Query(f"histogram_quantile(0.95, {per_stage})", "{{stage}}"),
            unit="s",
            base=GREEN,
            levels={30.0: ORANGE, 120.0: RED},
            empty="no incident in this time",
            says="The slow ones, by stage. 'leave' long: the Lighthouse's kill did not work, see "
            "docs/evict.md. 'rejoin' long: the launcher or the checkpoint.",
        ),
        heat(
            "Seconds of recovery over time",
            Query(
                grown(
                    f'lightkeeper_incident_stage_seconds_bucket{{{MONITOR}, stage="recover"}}',
                    by="le",
                ),
                "{{le}}",
            ),
            unit="s",
            buckets=True,
            scheme="Blues",
            width=24,
            height=8,
            value="incidents",
            empty="no recovery in this time",
            says="From the request to evict to the survivors' next commit: how long the job "
            "stood still. High cells: open the incident of that moment.",
        ),
    ]


def _cost() -> list[Any]:
    lost = grown(BAD, by="cause", within="$__range")
    return [
        goodput_tile(width=4, height=8),
        lost_lines(width=10, height=8),
        ranking(
            "Lost rank-seconds by cause",
            Query(lost, "{{cause}}"),
            unit="s",
            base=ORANGE,
            levels={},
            width=10,
            empty="none lost",
            says="What the shown time cost, by cause. The longest bar is worth your work: a kind "
            "of incident, starting, recovering, or what nobody can explain.",
        ),
    ]
