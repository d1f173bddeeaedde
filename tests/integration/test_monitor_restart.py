"""The monitor may die at any time: training goes on, and nothing that it knew is lost."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lightkeeper.trainer.demo import (
    DemoFleet,
    MonitorAwayError,
    MonitorClient,
    demo_options,
    start_fleet,
    start_monitor,
    wait_until_whole,
)
from tests.dashboards import asked, contract
from tests.incidents import fired
from tests.prometheus.server import Prometheus, example_config, prometheus
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(330)]


def quiet(_snapshot: dict[str, Any], _waiting_for: str) -> None:
    pass


def kill_monitor(fleet: DemoFleet) -> None:
    monitor = fleet.processes.pop("monitor")
    monitor.send_signal(signal.SIGKILL)
    monitor.wait(10)


def commits(urls: dict[str, str]) -> dict[str, int]:
    return {
        rank: int(requests.get(f"{url}/v1/state", timeout=5).json()["step"]["commits"])
        for rank, url in urls.items()
    }


def snapshot_or_none(client: MonitorClient) -> dict[str, Any] | None:
    with contextlib.suppress(MonitorAwayError):
        return client.snapshot()
    return None


def incident_of(client: MonitorClient, rank: str, state: str) -> dict[str, Any] | None:
    with contextlib.suppress(MonitorAwayError):
        for item in client.incidents():
            reached = [line["to"] for line in item["story"]]
            if item["culprits"] == [rank] and state in reached:
                return item
    return None


def quarantined(fleet: DemoFleet) -> list[str]:
    answer = requests.get(f"{fleet.monitor_url}/v1/quarantine", timeout=5).json()
    return [item["host"] for item in answer["quarantine"]]


def metric_names(*bases: str) -> set[str]:
    pages = [requests.get(f"{base}/metrics", timeout=5).text for base in bases]
    lines = [line.split() for page in pages for line in page.splitlines()]
    return {words[2] for words in lines if words[:2] == ["#", "TYPE"]}


def happened(prom: Prometheus, answer: asked.PanelAnswer) -> bool:
    """Whether a query of a panel has an answer, or had one at any second of ten minutes."""
    if answer.series or answer.where.startswith("annotation "):
        return True
    past = f"count_over_time(({answer.expr})[600s:1s])"
    return answer.found is not asked.Found.REFUSED and bool(prom.query(past))


@contextlib.contextmanager
def scraping(fleet: DemoFleet) -> Iterator[Prometheus | None]:
    """A Prometheus that scrapes monitor and ranks; None where none is installed."""
    if shutil.which("prometheus") is None:
        yield None
        return
    with prometheus(example_config(fleet.monitor_url)) as prom:
        yield prom


def ask_every_panel(prom: Prometheus, fleet: DemoFleet) -> None:
    """After a hang, an eviction and a heal: one more hang that a person's pause holds back for a
    while, then each query of each dashboard. None fails, none was empty all the time.

    The first eviction may have ended under the monitor that was killed, before it was scraped.
    """
    token = fleet.token_file.read_text().strip()

    def pause(method: str) -> None:
        said = requests.request(
            method,
            f"{fleet.monitor_url}/v1/pause",
            json={"reason": "panels", "hours": None, "author": "tests"},
            headers={"Authorization": f"Bearer {token}"},
            timeout=5,
        )
        assert said.ok, said.text

    pause("POST")
    fleet.inject("hang", "rg_0.0")
    prom.wait_for("lightkeeper_holding > 0", within_s=60)
    pause("DELETE")
    prom.wait_for("sum(lightkeeper_evictions_total) > 0", within_s=60)

    def unanswered() -> set[str]:
        answers = asked.ask_all(asked.Prometheus(prom.url), span_s=600, scrape_s=1)
        return {f"{a.board}: {a.where}" for a in answers if not happened(prom, a)}

    missing: set[str] = {"nobody was asked"}

    def answered() -> bool:
        missing.clear()
        missing.update(unanswered())
        return not missing

    try:
        wait_for(answered, within_s=30, what="every panel has data")
    except AssertionError:
        assert missing == set()
        raise


def test_training_goes_on_without_the_monitor_and_it_comes_back_knowing_everything(
    tmp_path: Path,
) -> None:
    options = demo_options(["--groups", "2", "--fault", "hang"])
    with (
        start_fleet(options, tmp_path) as fleet,
        scraping(fleet) as prom,
    ):
        client = fleet.monitor
        wait_until_whole(fleet, quiet, 180)
        urls = {rank["rank"]: rank["url"] for rank in client.snapshot()["ranks"]}

        kill_monitor(fleet)
        before = commits(urls)
        wait_for(
            lambda: all(now >= before[rank] + 10 for rank, now in commits(urls).items()),
            within_s=30,
            what="ten more commits in every rank while the monitor is dead",
        )

        start_monitor(fleet)
        wait_for(
            lambda: (
                (seen := snapshot_or_none(client))
                and {rank["rank"] for rank in seen["ranks"] if rank["health"] == "healthy"}
                == set(urls)
            ),
            within_s=15,
            what="every rank found again",
        )

        if prom is not None:  # which finds ranks by the monitor's list: it shall see them train
            growing = "deriv(lightkeeper_rank_collective_enqueued[6s]) > 0"
            prom.wait_for(f"count({growing}) == {len(urls)}", within_s=30)
        fleet.inject("hang", "rg_1.0")
        first = wait_for(
            lambda: incident_of(client, "rg_1.0", "firing"), within_s=60, what="the hang fires"
        )
        kill_monitor(fleet)  # in the middle of deciding and evicting
        start_monitor(fleet)
        incident = wait_for(
            lambda: incident_of(client, "rg_1.0", "firing"),
            within_s=15,
            what="the incident known after the restart",
        )
        assert incident["id"] == first["id"]

        wait_for(
            lambda: (
                (item := incident_of(client, "rg_1.0", "resolved"))
                and item["milestones"].get("rejoined_s")
            ),
            within_s=150,
            what="the group evicted and back",
        )
        assert quarantined(fleet) == []  # once, it comes back where it was
        assert [item["id"] for item in fired(client.incidents())] == [incident["id"]]
        assert incident_of(client, "rg_1.0", "resolved")["back_on"] == ["host-1"]
        assert fleet.left_s("rg_0", 0.0) is None

        # Both pages hold what the catalogue says: nothing else, and what is never left out.
        pages = metric_names(fleet.monitor_url, urls["rg_0.0"])
        assert pages - contract.FAMILIES == set()
        assert contract.ALWAYS - pages == set()

        if prom is not None:
            ask_every_panel(prom, fleet)
