"""What a dashboard asks a Prometheus, and the answers, as Grafana's front end would have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightkeeper.dashboards.committed import panels_of
from tests.prometheus.server import Prometheus

_ROUND: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600)
"""Steps of a query, in seconds."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_ALL: Final = "$__all"


@dataclass(frozen=True)
class Chosen:
    """What a person chose above the dashboard."""

    end_s: int
    range_s: int = 1800
    variables: Mapping[str, str] = field(default_factory=dict)
    scrape_s: int = 5
    """As the data source says (`timeInterval`)."""
    width: int = 1900
    """Of the window."""


@dataclass(frozen=True)
class Variable:
    """One above the dashboard."""

    value: str
    """As it stands in a query."""
    shown: str


class Asked:
    """One dashboard, asked with what was chosen."""

    def __init__(self, board: Mapping[str, Any], prom: Prometheus, chosen: Chosen) -> None:
        self.board, self._prom, self._chosen = board, prom, chosen
        self.variables: dict[str, Variable] = {}
        for variable in board["templating"]["list"]:
            self.variables[variable["name"]] = self._resolve(variable)

    def _resolve(self, variable: Mapping[str, Any]) -> Variable:
        name, kind = variable["name"], variable["type"]
        wanted = self._chosen.variables.get(name)
        if kind == "datasource":
            return Variable("prometheus", "Prometheus")
        if kind != "query":
            value = str(wanted or variable.get("current", {}).get("value") or variable["query"])
            return Variable(value, value)
        options = self._options(variable)
        listed = variable.get("multi") or variable.get("includeAll")
        if wanted is None and variable.get("includeAll"):
            every = "|".join(map(_escaped, options))
            return Variable(variable.get("allValue") or f"({every})", "All")
        value = wanted or next(iter(options), "")
        return Variable(_escaped(value) if listed else value, value)

    def _options(self, variable: Mapping[str, Any]) -> list[str]:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        assert asked is not None, variable["query"]
        values = self._prom.api(
            f"label/{asked[2]}/values",
            **{"match[]": self.filled(asked[1], 60)}, **self._span(),
        )  # fmt: skip
        return [str(value) for value in values]

    def _span(self) -> dict[str, str]:
        end_s = self._chosen.end_s
        return {"start": str(end_s - self._chosen.range_s), "end": str(end_s)}

    def filled(self, expr: str, step_s: int) -> str:
        """`expr` with the values of all variables."""
        scrape_s = self._chosen.scrape_s
        values = {name: variable.value for name, variable in self.variables.items()}
        values |= {
            "__rate_interval": f"{max(step_s + scrape_s, 4 * scrape_s)}s",
            "__interval": f"{step_s}s",
            "__range": f"{self._chosen.range_s}s",
        }
        return re.sub(r"\$\{?(\w+)\}?", lambda name: values[name[1]], expr)

    def panel(self, panel: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The answer to each of its queries."""
        pixels = panel["gridPos"]["w"] * self._chosen.width // 24
        least = panel.get("interval") or f"{self._chosen.scrape_s}s"
        least_s = int(least[:-1]) * _UNITS[least[-1]]
        step_s = max(least_s, self._chosen.range_s // max(pixels, 100))
        step_s = next(step for step in _ROUND if step >= step_s)
        return [self._answer(target, step_s) for target in panel["targets"]]

    def _answer(self, target: Mapping[str, Any], step_s: int) -> dict[str, Any]:
        expr = self.filled(target["expr"], step_s)
        if target.get("instant"):
            data = self._prom.api("query", query=expr, time=str(self._chosen.end_s))
        else:
            # whole steps, so that each event falls into one of them
            span = {name: str(int(at) // step_s * step_s) for name, at in self._span().items()}
            data = self._prom.api("query_range", query=expr, step=str(step_s), **span)
        rows = data["result"]
        if data["resultType"] == "scalar":
            rows = [{"metric": {}, "value": rows}]
        return {
            "refId": target["refId"], "format": target.get("format", "time_series"),
            "legend": target["legendFormat"], "step": step_s, "expr": expr,
            "instant": bool(target.get("instant")),
            "rows": [
                {"labels": row["metric"], "points": row.get("values") or [row["value"]]}
                for row in rows
            ],
        }  # fmt: skip

    def annotations(self) -> Iterator[dict[str, Any]]:
        """Marks, each from its first to its last moment."""
        for query in self.board["annotations"]["list"]:
            step = query.get("step") or "60s"
            step_s = int(step[:-1]) * _UNITS[step[-1]]
            expr = self.filled(query["expr"], step_s)
            data = self._prom.api("query_range", query=expr, step=str(step_s), **self._span())
            for row in data["result"] if query["enable"] else ():
                mark: dict[str, Any] | None = None
                for at_s, value in row["values"]:
                    if not float(value):
                        continue
                    if mark is not None and at_s - mark["to"] <= step_s:
                        mark["to"] = at_s
                        continue
                    mark = {"from": at_s, "to": at_s, "colour": query["iconColor"],
                            "name": query["name"]}  # fmt: skip
                    yield mark

    def everything(self) -> dict[str, Any]:
        """For the page that draws it."""
        return {
            "board": self.board,
            "from": self._chosen.end_s - self._chosen.range_s,
            "to": self._chosen.end_s,
            "variables": {name: vars(variable) for name, variable in self.variables.items()},
            "answers": {panel["id"]: self.panel(panel) for panel in panels_of(self.board)},
            "annotations": list(self.annotations()),
        }


def _escaped(value: str) -> str:
    """A chosen value as a part of a regular expression, as Grafana writes it into a query."""
    return re.sub(r"[\\^$.*+?()\[\]{}|]", lambda sign: rf"\\{sign[0]}", value)
