"""Panels of a large fleet: a real Prometheus scrapes what a monitor of such a fleet exports."""

import re

import pytest

from tests.dashboards.asked import Found, Prometheus, ask_all, every_query
from tests.dashboards.boards import PATHS, filled, load, panels
from tests.dashboards.crowd import monitor_page, ranks_page
from tests.deep import EXPLORES
from tests.http_server import FakeServer
from tests.prometheus.server import prometheus
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(170)]

RANKS = 10_000 if EXPLORES else 2_000
OWN_PAGES = 600
"""Ranks whose own metrics are scraped too, 30 series each; already more than a panel may draw."""
MOST_SERIES = 500
SHOWN_AT_FIRST = 40
NOTHING_TO_SHOW = (
    "Longest part of a recovery|Attempts that did not commit|Alerts|What machines say|"
    "Ranks' pages that Prometheus reads|Jobs/[CH]|Goodput"
)
"""What the pages tell nothing of: counters stand still, and Prometheus finds no ranks by a list.
Each is bounded by its query or by what it asks."""

CONFIG = """\
global: {{scrape_interval: 2s, scrape_timeout: 2s}}
scrape_configs:
  - {{job_name: lightkeeper, metrics_path: /monitor, static_configs: [{{targets: ["{at}"]}}]}}
  - {{job_name: lightkeeper-ranks, metrics_path: /ranks, static_configs: [{{targets: ["{at}"]}}]}}
"""


class Pages(FakeServer):
    """The two pages that Prometheus scrapes."""

    bodies: dict[str, bytes]

    def serve(self, handler, method, path, body):
        handler.reply(200, "text/plain; version=0.0.4", self.bodies[path])


@pytest.fixture
def pages():
    """Address of a server with them."""
    server = Pages()
    server.bodies = {"/monitor": monitor_page(RANKS), "/ranks": ranks_page(OWN_PAGES)}
    yield server.address
    server.close()


def columns_without_data(prom):
    """Columns of tables that no query of the table fills: lost in an aggregation, or misspelt."""
    lacking = {}
    for board in map(load, PATHS):
        for panel in panels(board):
            if panel["type"] != "table" or panel["title"] in {"Alerts", "What machines say"}:
                continue
            # labels that this Prometheus adds none of
            filled_in = (
                {"cluster", "namespace"}
                | {f"Value #{query['refId']}" for query in panel["targets"]}
                | {"Value"}
            )
            for target in panel["targets"]:
                for sample in prom.query(filled(target["expr"])):
                    filled_in |= set(sample.labels)
            shown = next(change["options"]["indexByName"] for change in panel["transformations"]
                         if change["id"] == "organize")  # fmt: skip
            if set(shown) - filled_in:
                lacking[f"{board['uid']}: {panel['title']}"] = set(shown) - filled_in
    return lacking


def test_no_panel_draws_more_than_a_few_hundred_series_of_thousands_of_ranks(pages):
    with prometheus(CONFIG.format(at=pages)) as prom:
        counted = "count(lightkeeper_rank_busy_seconds) + sum(sum_over_time(up[1m]))"
        # twice scraped, each: a rate needs two samples
        wait_for(
            lambda: prom.query(f"{counted} >= {RANKS} + 4"), within_s=60, what="both pages, twice"
        )
        asked = ask_all(Prometheus(prom.url), every_query(), span_s=60, scrape_s=2)
        lacking = columns_without_data(prom)

    assert lacking == {}
    assert [answer for answer in asked if answer.found is Found.REFUSED] == []
    drawn = {f"{answer.board}: {answer.where}": answer.series for answer in asked
             if not answer.where.startswith("variable ")}  # fmt: skip
    assert {name: count for name, count in drawn.items() if count >= MOST_SERIES} == {}
    # they are bounded because they choose, not because they have nothing to show
    for name in (
        "stragglers: panel Own work of the slowest ranks, against the median/A",
        "groups: panel State of each group/A",
        "rank: panel Loss of each rank/A",
    ):
        assert drawn[name] == SHOWN_AT_FIRST
    empty = {name for name, count in drawn.items() if not count and ": panel " in name}
    assert sorted(name for name in empty if not re.search(NOTHING_TO_SHOW, name)) == []
