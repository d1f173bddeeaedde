"""A real Alertmanager takes our alerts, pages for them, and hears of their end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lightkeeper.monitor.act.notices import Alertmanager
from tests.monitor.act.notify.scene import Bench, Receiver, held, over
from tests.monitor.fakes import wait_until
from tests.monitor.samples import incident
from tests.prometheus.alertmanager import SECRETS, Pagers, alertmanager

pytestmark = pytest.mark.integration

CONFIG = """\
route:
  receiver: people
  group_by: [alertname, replica_group]
  group_wait: 0s
  group_interval: 1s
receivers:
  - name: people
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


@pytest.fixture
def url(tmp_path: Path, receiver: Receiver) -> Iterator[str]:
    with alertmanager(CONFIG.format(url=receiver.url), tmp_path) as url:
        yield url


@pytest.fixture
def pagers() -> Iterator[Pagers]:
    made = Pagers()
    yield made
    made.close()


def alerts(url: str) -> list[dict]:
    return requests.get(f"{url}/api/v2/alerts", timeout=10).json()


def paged(receiver: Receiver) -> set[tuple[str, str]]:
    return {
        (alert["labels"]["alertname"], alert["status"])
        for body in receiver.bodies
        for alert in body["alerts"]
    }


def test_a_real_alertmanager_pages_and_hears_the_end(url: str, receiver: Receiver, make) -> None:
    bench: Bench = make(Alertmanager("alertmanager", url, expire_s=4.0))
    now_s = time.time()
    firing = incident(first_seen_s=now_s - 30)
    bench.tell(firing, now_s=now_s, decisions=held(firing, at_s=now_s - 20))
    fired = wait_until(lambda: len(alerts(url)) == 2 and alerts(url), 10, "both")
    by_name = {alert["labels"]["alertname"]: alert for alert in fired}
    fires = by_name["LightkeeperIncident"]
    assert fires["labels"] == {
        "alertname": "LightkeeperIncident", "severity": "critical", "kind": "not_entered",
        "replica_group": "rg_1", "incident": "inc-1",
    }  # fmt: skip
    assert fires["generatorURL"] == "http://head:8470/incidents/inc-1"
    assert fires["status"]["state"] == "active"
    assert by_name["LightkeeperHeld"]["labels"]["guard"] == "unsure"
    ends = fires["endsAt"]

    def sent_again() -> bool:
        return any(
            alert["labels"]["alertname"] == "LightkeeperIncident" and alert["endsAt"] > ends
            for alert in alerts(url)
        )

    wait_until(sent_again, 10, "it is sent again before it expires")
    bench.tell(over(firing, at_s=time.time()), now_s=time.time())
    wait_until(
        lambda: ("LightkeeperIncident", "resolved") in paged(receiver), 15, "the end is paged"
    )
    assert ("LightkeeperIncident", "firing") in paged(receiver)
    assert ("LightkeeperHeld", "firing") in paged(receiver)
    wait_until(lambda: not alerts(url), 10, "nothing is left")
    assert bench.counted("alertmanager", "failed") == 0
    assert bench.counted("alertmanager", "dropped") == 0


def test_an_incident_pages_and_its_end_ends_the_page(pagers, tmp_path, make) -> None:
    with alertmanager(pagers.recipes(tmp_path), tmp_path) as url:
        bench: Bench = make(Alertmanager("alertmanager", url))
        firing = incident(first_seen_s=time.time() - 30)
        bench.tell(firing, now_s=time.time())
        [page] = wait_until(lambda: pagers.bodies("/pagerduty"), 30, "a page")
        [alert] = wait_until(lambda: pagers.bodies("/opsgenie/v2/alerts"), 30, "a call")
        assert (page["event_action"], page["routing_key"]) == ("trigger", SECRETS["pagerduty-key"])
        payload = page["payload"]
        assert (payload["severity"], payload["class"], payload["component"]) == (
            "critical", "LightkeeperIncident", "rg_1",
        )  # fmt: skip
        assert page["client_url"] == "http://head:8470/incidents/inc-1"
        assert firing.verdict.reason in payload["custom_details"]["text"]
        assert (alert["priority"], alert["entity"]) == ("P1", "rg_1")
        [called] = {headers["Authorization"] for path, headers, _ in pagers.posts
                    if path.startswith("/opsgenie")}  # fmt: skip
        assert called == f"GenieKey {SECRETS['opsgenie-key']}"

        bench.tell(over(firing, at_s=time.time()), now_s=time.time())

        def ended() -> bool:
            pages = pagers.bodies("/pagerduty")
            return {body["event_action"] for body in pages} == {"trigger", "resolve"} and any(
                path.startswith(f"/opsgenie/v2/alerts/{alert['alias']}/close")
                for path, _, _ in pagers.posts
            )

        wait_until(ended, 30, "both are closed")
        assert len({body["dedup_key"] for body in pagers.bodies("/pagerduty")}) == 1
    assert pagers.bodies("/slack") == []
