"""A sketch of the dashboards from a real Prometheus' data, for who has no Grafana at hand.

Plain HTML: each dashboard's grid, with each panel's data drawn simply (`drawing`). It shows
layout, emptiness and scale; it is not Grafana, and says so on every page.
"""

from __future__ import annotations

import argparse
import sys
import time
from html import escape
from pathlib import Path
from typing import Any, Final

from dashboards import committed, drawing
from dashboards.asking import AskingError, Series, Times, ask, first_values
from dashboards.render import panels_of

_CELL: Final = 38
"""Pixels of a unit of height in Grafana, its gap of 8 included."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sketch` takes."""
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=60, help="shown time (default: 60)")
    parser.add_argument(
        "--scrape-interval", type=float, default=5, metavar="S", help="Prometheus' (default: 5)"
    )


def sketch(args: argparse.Namespace) -> int:
    """Write a page for each dashboard; the exit status."""
    args.out.mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    for board in committed.read():
        times = Times(now_s - args.minutes * 60, now_s, args.scrape_interval, first_values(board))
        try:
            text = page(board, args.prometheus, times)
        except AskingError as error:
            print(f"dashboards: {args.prometheus}: {error}", file=sys.stderr)
            return 1
        path = args.out / f"{board['uid']}.html"
        path.write_text(text)
        print(path)
    return 0


def page(board: dict[str, Any], url: str, times: Times) -> str:
    """One dashboard.

    Raises:
        AskingError: Prometheus did not answer a query.
    """
    parts = [_panel(panel, url, times) for panel in panels_of(board)]
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(times.end_s))
    note = (
        f"A sketch of the committed dashboard with the data of {url} at {when}. Not Grafana: it "
        "shows layout and data, not looks."
    )
    return drawing.document(board["title"], note, "".join(parts))


def _panel(panel: dict[str, Any], url: str, times: Times) -> str:
    spot = panel["gridPos"]
    place = (
        f"grid-column:{spot['x'] + 1}/span {spot['w']};grid-row:{spot['y'] + 1}/span {spot['h']};"
        f"--tall:{spot['h'] * _CELL - 8}px"
    )
    if panel["type"] == "row":
        return f'<h2 style="{place}">{escape(panel["title"])}</h2>'
    says = escape(panel.get("description", ""))
    return (
        f'<section style="{place}" class="{panel["type"]}" title="{says}">'
        f"<h3>{escape(panel['title'])}</h3>{_body(panel, url, times)}</section>"
    )


def _body(panel: dict[str, Any], url: str, times: Times) -> str:
    if panel["type"] == "annolist":
        return "<p class=empty>Grafana's own annotations: not in Prometheus</p>"
    times = times.of(panel)
    answers: list[list[Series]] = [ask(url, target, times) for target in panel["targets"]]
    if not any(answers):
        empty = panel["fieldConfig"]["defaults"].get("noValue", "no data")
        return f"<p class=empty>{escape(empty)}</p>"
    return drawing.DRAWN[panel["type"]](panel, answers, times)
