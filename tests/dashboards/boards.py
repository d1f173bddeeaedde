"""The committed dashboards, taken apart for tests."""

import json
import re
from pathlib import Path

from dashboards import committed

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "dashboards" / "grafana").glob("*.json"))
INTERVALS = {"$__rate_interval": "61s", "$__range": "3607s", "$__interval": "17s"}
"""Odd lengths: in an expression nothing else has them."""


def load(path):
    return json.loads(path.read_text())


def panels(board):
    return list(committed.panels_of(board))


def variables(board):
    return {one["name"]: one for one in board["templating"]["list"]}


def targets(board):
    """(panel, expression) of each query of a panel."""
    return [(panel["title"], one["expr"]) for panel in panels(board) for one in panel["targets"]]


def expressions(board):
    """(where, expression) of everything that is asked of Prometheus."""
    for title, expr in targets(board):
        yield f"panel {title}", expr
    for annotation in board["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]
    for name, variable in variables(board).items():
        if variable["type"] == "query":
            inside = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])
            yield f"variable {name}", inside[1]


def filled(expr, **chosen):
    """`expr` as Prometheus gets it, with everything chosen and the odd intervals."""
    for name, text in INTERVALS.items():
        expr = expr.replace(name, text)
    return re.sub(r"\$(\w+)", lambda found: chosen.get(found[1], ".+"), expr)


def selectors(expr):
    """(metric, text of its matchers) of each series that `expr` reads."""
    return re.findall(r"([a-z_:][\w:]*)\{([^}]*)\}", expr)
