"""Asks a Prometheus what a panel asks, with the variables at their first values. For the sketch.

Not Grafana's whole interpolation: every choice is All, intervals are those of the shown time.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field, replace
from typing import Any, Final

_TIMEOUT_S: Final = 30.0
_POINTS: Final = 120


class AskingError(Exception):
    """Prometheus is not there, or refused; one line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: (time, value) in order, not finite ones left out."""

    labels: dict[str, str]
    points: list[tuple[float, float]]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """What is shown."""

    start_s: float
    end_s: float
    scrape_s: float
    values: dict[str, str] = field(default_factory=dict)
    """Variable -> what stands for it."""
    coarse_s: float = 0.0
    """The shortest time between two points that the panel wants."""

    @property
    def step_s(self) -> float:
        """Between two points; no shorter than a scrape."""
        return max(self.scrape_s, self.coarse_s, (self.end_s - self.start_s) / _POINTS)

    def of(self, panel: dict[str, Any]) -> Times:
        """For one panel: with its own shortest time, which is in minutes if there is one."""
        minutes = str(panel.get("interval") or "0m").removesuffix("m")
        return replace(self, coarse_s=60 * float(minutes))

    def fill(self, expr: str) -> str:
        """`expr` with everything that Grafana would put in."""
        rate_s = max(self.step_s + self.scrape_s, 4 * self.scrape_s)
        known = {
            "__rate_interval": f"{round(rate_s)}s",
            "__interval": f"{max(1, round(self.step_s))}s",
            "__range": f"{round(self.end_s - self.start_s)}s",
            **self.values,
        }
        return re.sub(r"\$(\w+)", lambda found: known.get(found[1], found[0]), expr)


def first_values(board: dict[str, Any]) -> dict[str, str]:
    """All of everything; of a list the first, of a text its own."""
    found = {}
    for one in board["templating"]["list"]:
        chosen = one.get("current", {}).get("value")
        found[one["name"]] = one.get("allValue") or str(chosen or "")
    return found


def ask(url: str, target: dict[str, Any], times: Times) -> list[Series]:
    """The answer to one query of a panel.

    Raises:
        AskingError: there was none.
    """
    params: dict[str, Any] = {"query": times.fill(target["expr"])}
    if target.get("instant"):
        path, params = "query", {**params, "time": times.end_s}
    else:
        path = "query_range"
        params |= {"start": times.start_s, "end": times.end_s, "step": times.step_s}
    answer = _get(f"{url.rstrip('/')}/api/v1/{path}", params)
    if answer["resultType"] == "scalar":
        answer = {"result": [{"metric": {}, "value": answer["result"]}]}
    legend = target.get("legendFormat") or "__auto"
    return [_series(one, legend) for one in answer["result"]]


def _series(one: dict[str, Any], legend: str) -> Series:
    labels = {key: value for key, value in one["metric"].items() if key != "__name__"}
    values = one.get("values") or [one["value"]]
    points = [(float(at), float(value)) for at, value in values]
    return Series(
        labels, [point for point in points if math.isfinite(point[1])], _name(labels, legend)
    )


def _name(labels: dict[str, str], legend: str) -> str:
    if legend != "__auto":
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "value"


def _get(url: str, params: dict[str, Any]) -> dict[str, Any]:
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise AskingError(f"{url!r} is not an http(s):// URL")
    body = urllib.parse.urlencode(params).encode()
    try:
        with urllib.request.urlopen(url, body, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            told: dict[str, Any] = json.load(answer)["data"]
            return told
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:200]
        raise AskingError(f"{error.code}: {said}") from error
    except (OSError, ValueError, LookupError) as error:
        raise AskingError(" ".join(str(error).split())) from error
