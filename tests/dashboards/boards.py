"""The committed dashboards, taken apart for tests."""

import json
import re
from pathlib import Path

from lightkeeper.dashboards import committed
from tests.dashboards import asked

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "dashboards" / "grafana").glob("*.json"))
INTERVALS = {"__rate_interval": "61s", "__interval": "59s", "__range": "3607s"}
"""Odd lengths: in an expression nothing else has them."""


def load(path):
    return json.loads(path.read_text())


def panels(board):
    return list(committed.panels_of(board))


def variables(board):
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def targets(board):
    """(panel, expression) of each query of a panel."""
    return [
        (panel["title"], target["expr"]) for panel in panels(board) for target in panel["targets"]
    ]


def expressions(board):
    """(where, expression) of everything that is asked of Prometheus."""
    return [(query.where, query.expr) for query in asked.queries(board)]


def filled(expr, **chosen):
    """`expr` as Prometheus gets it, with everything chosen and, unless told, the odd intervals."""
    return asked.filled(expr, **{**INTERVALS, "job": "job", **chosen})


def selectors(expr):
    """(metric, text of its matchers) of each series that `expr` reads."""
    return re.findall(r"([a-z_:][\w:]*)\{([^}]*)\}", expr)
