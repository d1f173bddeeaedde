"""Which panels would a running Prometheus leave empty? `python -m tests.dashboards.asked URL`.

Every query of every panel, as Grafana runs it with everything chosen, over a span or for now. A
panel with its own text for no data ("nobody is accused") may be empty; any other empty panel, and
any refused query, is a finding.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlencode

from lightkeeper.dashboards.committed import panels_of, read_boards
from lightkeeper.dashboards.selectors import NO_DATA

# -- checked on a Prometheus ----------------------------------------------------------------------

STEP_S: Final = 5
_WAIT_S: Final = 30.0
_MONITOR: Final = "lightkeeper_self_health_scale"


def _one_line(text: str) -> str:
    """Text of a server, of which nothing moves a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


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
    """`expr` as Prometheus gets it: every variable not in `values` means all; cluster and namespace
    are none.
    """
    # ranks that no monitor lists to Prometheus have no run
    values = {"topn": "40", "run": ".*", "cluster": "", "namespace": "", **values}
    return re.sub(r"\$(\w+)", lambda name: values.get(name[1], ".+"), expr)


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
            with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
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


def _body(error: urllib.error.HTTPError) -> Any:
    try:
        return json.load(error)
    except ValueError:
        return None


def ask(
    prom: Prometheus, query: BoardQuery, *, job: str, span_s: int, scrape_s: int
) -> PanelAnswer:
    """Run one query as its panel does, over the last `span_s` or for now.

    Args:
        prom: the Prometheus.
        query: of a dashboard.
        job: the one that is shown.
        span_s: the time shown.
        scrape_s: Prometheus's scrape interval, from which `$__rate_interval` follows.
    """
    rate_s = max(STEP_S + scrape_s, 4 * scrape_s)
    times = {"__rate_interval": f"{rate_s}s", "__interval": "60s", "__range": f"{span_s}s"}
    expr = filled(query.expr, job=job, **times)
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


def every_query() -> list[BoardQuery]:
    return [query for board in read_boards() for query in queries(board)]


def ask_all(
    prom: Prometheus, every: Sequence[BoardQuery], *, span_s: int, scrape_s: int
) -> list[PanelAnswer]:
    """Each of these queries, for the first job that there is."""
    match = {"match[]": "lightkeeper_job_info"}
    job = next(iter(prom.api("label/job_id/values", **match)), "")
    return [ask(prom, query, job=job, span_s=span_s, scrape_s=scrape_s) for query in every]


def scrapes_a_monitor(prom: Prometheus) -> bool:
    """Whether a monitor is seen now; without one every panel is rightly empty."""
    return bool(prom.api("query", query=_MONITOR)["result"])


# -- command line ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a Prometheus: http://127.0.0.1:9090")
    parser.add_argument("--range", type=int, default=900, help="seconds that panels show")
    parser.add_argument("--scrape", type=int, default=15, help="seconds between scrapes")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    args = parser.parse_args(arguments)
    prom = Prometheus(args.url)
    try:
        seen = scrapes_a_monitor(prom)
        answers = ask_all(prom, every_query(), span_s=args.range, scrape_s=args.scrape)
    except (PrometheusError, ValueError) as error:
        print(_one_line(f"error: {error}"), file=sys.stderr)
        return 1
    wrong = [answer for answer in answers if answer.found in (Found.EMPTY, Found.REFUSED)]
    if args.format == "json":
        body = {"wrong": len(wrong), "queries": [answer.to_json() for answer in answers]}
        print(json.dumps(body, indent=2))
    else:
        for answer in answers:
            words = (answer.found, answer.series, answer.board, answer.where, answer.said)
            print(_one_line("  ".join(map(str, words)).rstrip()))
        print(f"{len(answers)} queries, {len(wrong)} failed or empty")
    if not seen:
        print("error: this Prometheus sees no monitor: does it scrape one?", file=sys.stderr)
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
