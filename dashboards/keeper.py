"""What did the keeper do, and is it itself well?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import BLUE, ORANGE, RED, Query, lines, ranking
from dashboards.selectors import MONITOR


def add(board: dashboard.Dashboard) -> dashboard.Dashboard:
    """Incidents, evictions, and what was held back."""
    stage = f"lightkeeper_incident_stage_seconds_sum{{{MONITOR}}}"
    stages = f"lightkeeper_incident_stage_seconds_count{{{MONITOR}}}"
    return (
        board.with_row(dashboard.Row("What did the keeper do?"))
        .with_panel(
            lines(
                "Open incidents",
                Query(
                    f"sum by (kind, state) (lightkeeper_incidents{{{MONITOR}}})",
                    "{{kind}} {{state}}",
                ),
                bars=True,
                says="Incidents that are not resolved, by kind and state.",
            )
        )
        .with_panel(
            ranking(
                "Mean time of each stage",
                Query(
                    f"sum by (stage) (increase({stage}[$__range])) / "
                    f"(sum by (stage) (increase({stages}[$__range])) > 0)",
                    "{{stage}}",
                ),
                unit="s",
                base=BLUE,
                levels={30.0: ORANGE, 120.0: RED},
                says="detect: first seen to firing. decide: to the request to evict. leave: to "
                "out of the quorum. recover: to the survivors' next commit. rejoin: to the "
                "group's return. Without a keeper TorchFT's defaults lose the job after 120 s.",
            )
        )
        .with_panel(
            lines(
                "Evictions",
                Query(
                    "sum by (kind, outcome) "
                    f"(increase(lightkeeper_evictions_total{{{MONITOR}}}[$__rate_interval]))",
                    "{{kind}} {{outcome}}",
                ),
                bars=True,
                says="Evictions by the kind of incident and by how they ended.",
            )
        )
        .with_panel(
            lines(
                "Held back",
                Query(
                    "sum by (guard) "
                    f"(increase(lightkeeper_holds_total{{{MONITOR}}}[$__rate_interval]))",
                    "{{guard}}",
                ),
                bars=True,
                says="Decisions not to evict, by the guard that held: budget, min_replicas, "
                "observe mode and so on.",
            )
        )
        .with_panel(
            lines(
                "Transitions of incidents",
                Query(
                    "sum by (kind, to) (increase("
                    f"lightkeeper_incident_transitions_total{{{MONITOR}}}[$__rate_interval]))",
                    "{{kind}} to {{to}}",
                ),
                bars=True,
                says="Many that go from pending to resolved without firing mean thresholds near "
                "the job's own noise.",
            )
        )
        .with_panel(
            lines(
                "Quarantined hosts",
                Query(f"max(lightkeeper_quarantined_hosts{{{MONITOR}}})", "hosts"),
                Query(f"max(lightkeeper_quarantined_groups{{{MONITOR}}})", "groups"),
                Query(f"max(lightkeeper_lemon_hosts{{{MONITOR}}})", "lemons"),
                says="Hosts to which no group is admitted, groups that are admitted nowhere, and "
                "hosts that fail again and again. `lightkeeper quarantine list` names them and "
                "says until when.",
            )
        )
    )


def add_itself(board: dashboard.Dashboard) -> dashboard.Dashboard:
    """A collapsed row: is the observer to be believed?"""
    tick = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    polls = f"lightkeeper_poll_failures_total{{{MONITOR}}}"
    crashes = f"lightkeeper_detector_failures_total{{{MONITOR}}}"
    writes = f"lightkeeper_store_errors_total{{{MONITOR}}}"
    late = f"lightkeeper_tick_lateness_seconds{{{MONITOR}}}"
    doubt = f"lightkeeper_self_health_scale{{{MONITOR}}}"
    works = f"lightkeeper_detector_up{{{MONITOR}}}"
    slow_tick = f"histogram_quantile(0.95, sum by (le) (rate({tick}[$__rate_interval])))"
    return board.with_row(
        dashboard.Row("The keeper itself")
        .collapsed(True)
        .with_panel(
            lines(
                "Tick",
                Query(slow_tick, "95 % take"),
                Query(f"max({late})", "late by"),
                unit="s",
                width=6,
                says="How long a tick takes and how late it starts. A late monitor stops evicting.",
            )
        )
        .with_panel(
            lines(
                "Polls that failed",
                Query(f"sum by (reason) (rate({polls}[$__rate_interval]))", "{{reason}}"),
                width=6,
                says="Ranks that gave no usable answer, by reason, a second.",
            )
        )
        .with_panel(
            lines(
                "Detectors that crashed",
                Query(f"sum by (detector) (increase({crashes}[$__rate_interval]))", "{{detector}}"),
                width=6,
                says="A crashed detector means unknown, never healthy. Any value here is a bug: "
                "the monitor's log has the traceback.",
            )
        )
        .with_panel(
            lines(
                "Writes that failed",
                Query(f"sum(increase({writes}[$__rate_interval]))", "errors"),
                width=6,
                says="Decisions that could not be stored. Look at the disk of the monitor's store.",
            )
        )
        .with_panel(
            lines(
                "Doubts itself",
                Query(f"max({doubt})", "thresholds times"),
                Query(f"min by (detector) ({works}) < 1", "{{detector}} does not work"),
                width=24,
                says="What thresholds are multiplied by because the monitor was late, cut off or "
                "starved; 1 when it is well. A detector that does not work is at 0.",
            )
        )
    )
