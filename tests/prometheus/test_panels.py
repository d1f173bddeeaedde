"""Every panel of every dashboard, on a real fleet that hangs, evicts and heals."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from experiments.band.experiment import wait, whole
from experiments.fleet import SMALL, Fleet, Setting
from tests.dashboards import asked, contract
from tests.nursery import nursery
from tests.prometheus import healthy
from tests.prometheus.server import Prometheus, example_config, prometheus
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus"),
]


NOT_HERE = {"incidents: panel What machines say/A", "fleet: panel Alerts/A"}
"""A machine of it would have to be broken, and all well again within an alert's patience."""


def metric_names(*bases: str) -> set[str]:
    pages = [requests.get(f"{base}/metrics", timeout=5).text for base in bases]
    lines = [line.split() for page in pages for line in page.splitlines()]
    return {words[2] for words in lines if words[:2] == ["#", "TYPE"]}


def happened(prom: Prometheus, answer: asked.PanelAnswer, since_s: float) -> bool:
    """Whether a query of a panel has an answer, or had one at any second since then."""
    if answer.series or answer.where.startswith("annotation "):
        return True
    past = f"count_over_time(({answer.expr})[{time.monotonic() - since_s:.0f}s:1s])"
    return answer.found is not asked.Found.REFUSED and bool(prom.query(past))


def ask_every_panel(prom: Prometheus, fleet: Fleet, since_s: float) -> None:
    """After a hang that a person's pause held back for a while, an eviction and a heal: each query
    of each dashboard. None fails, none was empty all the time.
    """
    token = (fleet.folder / "token").read_text().strip()

    def pause(method: str) -> None:
        said = requests.request(
            method, f"{fleet.monitor_url}/v1/pause", headers={"Authorization": f"Bearer {token}"},
            json={"reason": "panels", "hours": None, "author": "tests"}, timeout=5,
        )  # fmt: skip
        assert said.ok, said.text

    pause("POST")
    fleet.inject([{"id": "1-hang", "kind": "hang", "rank": "rg_0.0"}])
    prom.wait_for("lightkeeper_holding > 0", within_s=60)
    pause("DELETE")
    prom.wait_for("sum(lightkeeper_evictions_total) > 0", within_s=60)
    wait(lambda: whole(fleet), "a whole fleet again")

    missing = [q for q in asked.every_query() if f"{q.board}: {q.where}" not in NOT_HERE]
    assert missing

    def answered() -> bool:
        """A query that had an answer once is not asked again."""
        answers = asked.ask_all(asked.Prometheus(prom.url), missing, span_s=600, scrape_s=1)
        pairs = zip(missing, answers, strict=True)
        missing[:] = [query for query, answer in pairs if not happened(prom, answer, since_s)]
        return not missing

    try:
        wait_for(answered, within_s=120, what="every panel has data")
    except AssertionError:
        assert missing == []
        raise


def test_no_panel_is_empty_and_both_pages_hold_what_the_catalogue_says(tmp_path: Path) -> None:
    folder, parent = tmp_path / "fleet", nursery("torch")
    options = (*SMALL, "--step-time", "0.5")
    fleet = Fleet(Setting("3x1"), folder, trainer_options=options, nursery=parent)
    with ExitStack() as ends:
        ends.callback(fleet.stop)
        fleet.start()
        since_s = time.monotonic()
        prom = ends.enter_context(prometheus(example_config(fleet.monitor_url)))
        wait(lambda: whole(fleet), "a whole fleet")
        growing = "deriv(lightkeeper_rank_collective_enqueued[6s]) > 0"
        prom.wait_for(f"count({growing}) == {len(fleet.ranks)}", within_s=30)
        healthy.assert_silent(fleet.monitor_url, tmp_path)
        ask_every_panel(prom, fleet, since_s)
        urls = {rank["rank"]: rank["url"] for rank in fleet.client().snapshot()["ranks"]}
        # nothing else than the catalogue says, and what is never left out
        pages = metric_names(fleet.monitor_url, urls["rg_1.0"])
        assert pages - contract.FAMILIES == set()
        assert contract.ALWAYS - pages == set()
