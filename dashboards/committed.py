"""The committed dashboards, as JSON: rendered, read, fitted to one site, compared, and checked.

The check runs every query on a running Prometheus: which panels would be empty? Each as Grafana
runs it with everything chosen, over a span or for now. A panel with its own text for no data
("nobody is accused") may be empty; any other empty panel, and any refused query, is a finding.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from lightkeeper.dashboards.selectors import MONITOR_URL, NO_DATA, RUNBOOKS

GRAFANA: Final = Path(__file__).parent / "grafana"
_GRAFANAS_OWN: Final = frozenset({"id", "version", "iteration"})
"""Keys that Grafana sets itself."""


class CommittedError(Exception):
    """A file is not a dashboard; the message is one line."""


def read(folder: Path = GRAFANA) -> list[dict[str, Any]]:
    """The rendered dashboards in a folder, by name.

    Raises:
        CommittedError: there are none, or one is not a dashboard.
    """
    boards = []
    for path in sorted(folder.glob("*.json")):
        try:
            board = json.loads(path.read_text())
            uid, title = board["uid"], board["title"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CommittedError(
                f"{path} is no dashboard: {' '.join(str(error).split())}"
            ) from error
        boards.append({**board, "uid": uid, "title": title})
    if not boards:
        raise CommittedError(f"no dashboards in {folder}")
    return boards


def render(*, write: bool) -> list[Path]:
    """Files that differ from the Python; `write`: update them.

    Raises:
        ImportError: grafana-foundation-sdk is not installed (it is a development extra).
    """
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 - see Raises

    from lightkeeper.dashboards import drill_downs, fleet  # noqa: PLC0415

    differing = []
    for board in (
        fleet.fleet(),
        drill_downs.groups(),
        drill_downs.rank(),
        drill_downs.stragglers(),
        drill_downs.incidents(),
        drill_downs.keeper(),
    ):
        path = GRAFANA / f"{board.uid.removeprefix('lightkeeper-')}.json"
        said = _finish(json.loads(JSONEncoder().encode(board.builder().build())))
        text = json.dumps(said, indent=2, sort_keys=True) + "\n"
        if not path.exists() or path.read_text() != text:
            differing.append(path)
            if write:
                path.write_text(text)
    return differing


def _finish(board: dict[str, Any]) -> dict[str, Any]:
    """Fix what the SDK omits or adds: panel ids, no hiding of links and annotations."""
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    board["timezone"] = "browser"
    for shown in (*board["links"], *board["annotations"]["list"]):
        shown.pop("placement", None)
    for variable in board["templating"]["list"]:
        for interval_only in ("auto", "auto_count", "auto_min"):
            variable.pop(interval_only, None)
    return board


def panels_of(board: Mapping[str, Any], *, rows: bool = False) -> Iterator[dict[str, Any]]:
    """Its panels, or (`rows`) its row titles."""
    return (panel for panel in board.get("panels", []) if (panel["type"] == "row") is rows)


def fitted(
    board: Mapping[str, Any], monitor_url: str | None, runbooks_url: str | None = None
) -> dict[str, Any]:
    """With the site's monitor in the variable `monitor_url`, and a link to its runbooks."""
    made = copy.deepcopy(dict(board))
    for variable in made.get("templating", {}).get("list", []):
        if monitor_url is not None and variable.get("name") == "monitor_url":
            url = monitor_url.rstrip("/")
            variable["query"] = url
            variable["current"] = {**variable.get("current", {}), "text": url, "value": url}
    for link in made.get("links", []) if runbooks_url is not None else ():
        link["url"] = runbooks_url if link.get("url") == RUNBOOKS else link.get("url")
    return made


def rules(monitor_url: str | None, runbooks_url: str | None = None) -> Iterator[tuple[str, str]]:
    """Name and text of each file for Prometheus, its runbooks at the given page (default: the
    monitor's own).
    """
    page = runbooks_url or f"{(monitor_url or MONITOR_URL).rstrip('/')}/runbooks"
    for path in sorted((GRAFANA.parent / "prometheus").glob("*.yml")):
        yield path.name, path.read_text().replace(f"{MONITOR_URL}/runbooks#", f"{page}#")


def plain(board: Mapping[str, Any]) -> dict[str, Any]:
    """A dashboard without Grafana's own keys."""
    return {key: value for key, value in board.items() if key not in _GRAFANAS_OWN}


def digest(board: Mapping[str, Any]) -> str:
    """Twelve characters that identify its content."""
    text = json.dumps(plain(board), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def difference(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> list[str]:
    """Lines of a unified diff, from what Grafana has to what a push would store."""
    uid = ours["uid"]
    before, after = (
        json.dumps(plain(board), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
        if board is not None
        else []
        for board in (theirs, ours)
    )
    return list(
        difflib.unified_diff(
            before, after, f"grafana/{uid}", f"lightkeeper/{uid}", lineterm="", n=2
        )
    )


# -- checked on a Prometheus ----------------------------------------------------------------------

STEP_S: Final = 5
_WAIT_S: Final = 30.0
_MONITOR: Final = "lightkeeper_self_health_scale"


class PrometheusError(Exception):
    """No Prometheus answers; the message is one line."""


class Found(StrEnum):
    SERIES = "ok"
    QUIET = "quiet"  # none, and the panel has its own text for that
    EMPTY = "EMPTY"
    REFUSED = "FAILED"


@dataclass(frozen=True, slots=True)
class BoardQuery:
    board: str
    where: str
    """`panel TITLE/A`, `annotation NAME` or `variable NAME`."""
    expr: str
    """With Grafana's variables in it."""
    instant: bool = False
    quiet: str = ""
    """Shown when nothing is found; empty: there must be a result."""


@dataclass(frozen=True, slots=True)
class PanelAnswer:
    board: str
    where: str
    found: Found
    series: int
    said: str
    """Prometheus's error for a refused query; what a quiet panel shows."""
    expr: str
    """As it was run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def queries(board: Mapping[str, Any]) -> Iterator[BoardQuery]:
    name = str(board["uid"]).removeprefix("lightkeeper-")
    for panel in panels_of(board):
        no_value = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue", NO_DATA)
        for target in panel["targets"]:
            yield BoardQuery(
                name, f"panel {panel['title']}/{target['refId']}", target["expr"],
                instant=bool(target.get("instant")), quiet="" if no_value == NO_DATA else no_value,
            )  # fmt: skip
    for mark in board["annotations"]["list"]:
        yield BoardQuery(name, f"annotation {mark['name']}", mark["expr"], quiet="no mark")
    for variable in board["templating"]["list"]:
        values = re.fullmatch(r"label_values\((.*), (\w+)\)", str(variable.get("query", "")))
        if values is not None:
            expr = f"count by ({values[2]}) ({values[1]})"
            yield BoardQuery(name, f"variable {variable['name']}", expr)


def filled(expr: str, **values: str) -> str:
    """`expr` as Prometheus gets it: every variable not in `values` means all."""
    values = {"topn": "40", **values}
    every = {"run": ".*"}  # ranks that no monitor lists to Prometheus have no run
    return re.sub(r"\$(\w+)", lambda name: {**every, **values}.get(name[1], ".+"), expr)


class Prometheus:
    """Its HTTP API, as far as needed here."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def api(self, path: str, **parameters: str) -> Any:
        """`data` of an answer.

        Raises:
            ValueError: it refuses the query; the message is its own.
            PrometheusError: no answer, or not a Prometheus.
        """
        url = f"{self._url}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:  # noqa: S310 - checked
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            body = _body(error)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise PrometheusError(f"{self._url} gives no answer: {reason}") from error
        if not isinstance(body, dict) or "status" not in body:
            raise PrometheusError(f"{self._url} is no Prometheus: it has no /api/v1/{path}")
        if body["status"] != "success":
            raise ValueError(" ".join(str(body.get("error")).split()))
        return body["data"]


def one_line(text: str) -> str:
    """Text of a server, of which nothing moves a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _body(error: urllib.error.HTTPError) -> Any:
    try:
        return json.load(error)
    except ValueError:
        return None


def ask(prom: Prometheus, query: BoardQuery, *, span_s: int, scrape_s: int) -> PanelAnswer:
    """Run one query as its panel does, over the last `span_s` or for now.

    Args:
        prom: the Prometheus.
        query: of a dashboard.
        span_s: the time shown.
        scrape_s: Prometheus's scrape interval, from which `$__rate_interval` follows.
    """
    rate_s = max(STEP_S + scrape_s, 4 * scrape_s)
    expr = filled(query.expr, __rate_interval=f"{rate_s}s", __range=f"{span_s}s")
    now_s = time.time()
    try:
        if query.instant:
            data = prom.api("query", query=expr, time=f"{now_s}")
        else:
            data = prom.api("query_range", query=expr, start=f"{now_s - span_s}", end=f"{now_s}",
                            step=f"{max(STEP_S, span_s // 10_000)}s")  # fmt: skip
    except ValueError as error:
        return PanelAnswer(query.board, query.where, Found.REFUSED, 0, str(error), expr)
    series = 1 if data["resultType"] in ("scalar", "string") else len(data["result"])
    outcome = Found.SERIES if series else Found.QUIET if query.quiet else Found.EMPTY
    said = query.quiet if outcome is Found.QUIET else ""
    return PanelAnswer(query.board, query.where, outcome, series, said, expr)


def ask_all(prom: Prometheus, *, span_s: int, scrape_s: int) -> list[PanelAnswer]:
    every = [query for board in read() for query in queries(board)]
    return [ask(prom, query, span_s=span_s, scrape_s=scrape_s) for query in every]


def scrapes_a_monitor(prom: Prometheus) -> bool:
    """Whether a monitor is seen now; without one every panel is rightly empty."""
    return bool(prom.api("query", query=_MONITOR)["result"])
