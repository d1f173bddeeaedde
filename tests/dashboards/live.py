"""Every panel's query against a real Prometheus, as Grafana would ask it.

By hand, beside a Prometheus that scrapes a running fleet:

    python -m tests.dashboards.live http://127.0.0.1:9090 --range 20m

`check_panels.py` (shared/tools) does the asking: it resolves the variables in their order, fills
in Grafana's intervals, and says of each query how many series came back, or Prometheus's error.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.dashboards.boards import PATHS, ROOT
from tests.prometheus.server import Prometheus

TOOL = ROOT.parent / "shared" / "tools" / "check_panels.py"


@dataclass(frozen=True)
class Asked:
    """One query and what came back."""

    board: str
    kind: str
    """panel, variable or annotation"""
    where: str
    ref: str
    expr: str
    series: int
    samples: int
    status: str
    """ok, empty-ok, EMPTY, ERROR or UNRESOLVED"""
    error: str | None

    @property
    def name(self) -> str:
        """Board, panel and query."""
        return f"{self.board}: {self.where}/{self.ref}"


def ask(
    path: Path, url: str, *, span: str = "15m", scrape: str = "1s", may_be_empty: str = r"(?!)"
) -> list[Asked]:
    """Everything that one dashboard asks; `may_be_empty` matches `panel/ref`."""
    command = [sys.executable, str(TOOL), str(path), url, "--json", "--range", span,
               "--step", "5s", "--scrape-interval", scrape,
               "--allow-empty", may_be_empty]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in {0, 1}, done.stderr
    return [
        Asked(path.stem, row["kind"], row["where"], row["ref"], row["expr"], row["series"],
              row["samples"], row["status"], row["error"])
        for row in json.loads(done.stdout)["rows"]
    ]  # fmt: skip


def ask_all(url: str, *, span: str, may_be_empty: str = r"(?!)", scrape: str = "1s") -> list[Asked]:
    """Of all dashboards."""
    return [
        one
        for path in PATHS
        for one in ask(path, url, span=span, scrape=scrape, may_be_empty=may_be_empty)
    ]


def wrong(asked: list[Asked]) -> dict[str, str]:
    """Queries that failed, were empty without leave, or used an unknown variable."""
    return {
        one.name: f"{one.status} {one.error or ''} {one.expr}"
        for one in asked
        if one.status in {"ERROR", "EMPTY", "UNRESOLVED"}
    }


def never_answered(prom: Prometheus, asked: list[Asked], span: str) -> dict[str, str]:
    """Of the queries that failed or are empty now, those that had no answer at any moment.

    A table of open incidents is empty once they are over: then it is asked for the whole time,
    as a subquery.
    """
    return {
        one.name: f"{one.status} {one.error or ''} {one.expr}"
        for one in asked
        if one.status != "ok"
        and one.kind == "panel"
        and (one.error or not prom.query(f"count_over_time(({one.expr})[{span}:1s])"))
    }


def main() -> int:
    """Print one line a query, and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--range", default="15m")
    parser.add_argument("--allow-empty", default=r"(?!)")
    args = parser.parse_args()
    asked = ask_all(args.url, span=args.range, may_be_empty=args.allow_empty)
    for one in asked:
        line = f"{one.status:9} {one.series:5} series {one.samples:7} samples  {one.name}"
        print(re.sub(r"\s+$", "", f"{line}  {one.error or ''}"))
    bad = wrong(asked)
    most = max(asked, key=lambda one: one.series)
    print(f"{len(asked)} queries, {len(bad)} bad; most series: {most.series} ({most.name})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
