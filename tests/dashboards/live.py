"""Every query of the dashboards, asked of a real Prometheus with everything chosen.

By hand, beside a Prometheus that scrapes a running fleet:

    python -m tests.dashboards.live http://127.0.0.1:9090 --range 1200 --scrape 5
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.dashboards.boards import PATHS, expressions, filled, load
from tests.prometheus.server import Prometheus

STEP_S = 5


@dataclass(frozen=True)
class Asked:
    """One query and what came back."""

    name: str
    """Board, kind (panel, annotation or variable), where."""
    expr: str
    series: int
    error: str


def ask_all(prom: Prometheus, *, span_s: int, scrape_s: int = 1) -> list[Asked]:
    """Every query for the last `span_s`, with Grafana's `$__rate_interval` of that scrape."""
    rate_s = max(STEP_S + scrape_s, 4 * scrape_s)
    end = time.time()
    when = {"start": str(end - span_s), "end": str(end), "step": f"{STEP_S}s"}
    answers = []
    for path in PATHS:
        for where, expr in expressions(load(path)):
            asked = filled(expr, __rate_interval=f"{rate_s}s", __range=f"{span_s}s")
            try:
                found, error = len(prom.api("query_range", query=asked, **when)["result"]), ""
            except AssertionError as refused:
                found, error = 0, str(refused).splitlines()[0]
            answers.append(Asked(f"{path.stem}: {where}", asked, found, error))
    return answers


def never_answered(prom: Prometheus, asked: list[Asked], span_s: int) -> dict[str, str]:
    """Queries of panels that failed, or had no answer at any second of the time."""
    return {
        one.name: f"{one.error} {one.expr}"
        for one in asked
        if ": annotation " not in one.name
        and not one.series
        and (one.error or not prom.query(f"count_over_time(({one.expr})[{span_s}s:1s])"))
    }


def main() -> int:
    """Print one line a query; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--range", type=int, default=900, metavar="SECONDS")
    parser.add_argument("--scrape", type=int, default=5, metavar="SECONDS")
    args = parser.parse_args()
    prom = Prometheus(args.url, Path("/dev/null"))
    asked = ask_all(prom, span_s=args.range, scrape_s=args.scrape)
    for one in asked:
        print(f"{one.series:5} series  {one.name}  {one.error}".rstrip())
    empty = sum(not one.series for one in asked)
    print(f"{len(asked)} queries, {empty} without an answer")
    return 1 if any(one.error for one in asked) else 0


if __name__ == "__main__":
    sys.exit(main())
