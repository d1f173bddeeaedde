"""The alerts of Prometheus, as Grafana's own alerting takes them from a file.

Both say the same, because this one is made of the other: an instant query, the names of recording
rules written out, fires for each series that it returns, whatever its value. Nothing returned means
that all is well.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any, Final

import yaml

from lightkeeper.dashboards.committed import GRAFANA
from tests.dashboards.rules import Alert, alerts

PATH: Final = GRAFANA / "alerting" / "lightkeeper.yaml"
_HEAD: Final = """\
# Made of ../../prometheus/alerts.yml by `make dashboards`: edit that. Put into Grafana's
# /etc/grafana/provisioning/alerting/ where Prometheus itself evaluates no alerts: else each is sent
# twice. `lightkeeper-prometheus` is the uid of the data source: put yours.
"""
_SOURCE: Final = "lightkeeper-prometheus"
_EXPRESSION: Final = "__expr__"


def text() -> str:
    made = {
        "apiVersion": 1,
        "groups": [
            {"orgId": 1, "name": name, "folder": "Lightkeeper", "interval": "30s",
             "rules": [_rule(alert) for alert in group]}
            for name, group in groupby(alerts(), key=lambda alert: alert.group)
        ],
    }  # fmt: skip
    return _HEAD + yaml.safe_dump(made, sort_keys=False, width=1000)


def _rule(alert: Alert) -> dict[str, Any]:
    query = {"expr": alert.expr, "instant": True, "range": False}
    returned = {"type": "math", "expression": "is_number($A) || is_nan($A) || is_inf($A)"}
    above = {"evaluator": {"type": "gt", "params": [0]}}
    fires = {"type": "threshold", "expression": "B", "conditions": [above]}
    words = {
        name: re.sub(r"\$value\b", "$values.A.Value", said)
        for name, said in alert.annotations.items()
    }
    board = words["dashboard_url"].rpartition("/")[2]
    return {
        "uid": alert.name.lower(),
        "title": alert.name,
        "condition": "C",
        "data": [
            _step("A", _SOURCE, query), _step("B", _EXPRESSION, returned),
            _step("C", _EXPRESSION, fires),
        ],
        "for": f"{alert.for_s}s",
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": alert.labels,
        # a link beside the alert: the dashboard's first panel
        "annotations": {**words, "__dashboardUid__": board, "__panelId__": "2"},
    }  # fmt: skip


def _step(ref: str, source: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": ref, "datasourceUid": source, "relativeTimeRange": {"from": 600, "to": 0},
        "model": {"refId": ref, **model},
    }  # fmt: skip
