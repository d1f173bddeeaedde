"""A real Alertmanager takes our alerts, pages for them, and hears of their end.

Debian has one (`apt-get install prometheus-alertmanager`); elsewhere it is called `alertmanager`.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lightkeeper.monitor.act.notices import Alertmanager
from tests.monitor.act.notify.scene import Bench, Receiver, held, over
from tests.monitor.fakes import wait_until
from tests.monitor.samples import incident
from tests.ports import free_port

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
def alertmanager(tmp_path: Path, receiver: Receiver) -> Iterator[str]:
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("no Alertmanager is installed (apt-get install prometheus-alertmanager)")
    config = tmp_path / "alertmanager.yml"
    config.write_text(CONFIG.format(url=receiver.url))
    url = f"http://127.0.0.1:{free_port()}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, f"--config.file={config}", f"--storage.path={tmp_path / 'data'}",
             f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address="],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                return requests.get(f"{url}/-/ready", timeout=5).ok
            except requests.RequestException:
                return False

        wait_until(ready, 20, "the Alertmanager is ready")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def alerts(url: str) -> list[dict]:
    return requests.get(f"{url}/api/v2/alerts", timeout=10).json()


def paged(receiver: Receiver) -> set[tuple[str, str]]:
    return {
        (alert["labels"]["alertname"], alert["status"])
        for body in receiver.bodies
        for alert in body["alerts"]
    }


def test_a_real_alertmanager_pages_and_hears_the_end(
    alertmanager: str, receiver: Receiver, make
) -> None:
    bench: Bench = make(Alertmanager("alertmanager", alertmanager, expire_s=4.0))
    now_s = time.time()
    firing = incident(first_seen_s=now_s - 30)
    bench.tell(firing, now_s=now_s, decisions=held(firing, at_s=now_s - 20))
    fired = wait_until(lambda: len(alerts(alertmanager)) == 2 and alerts(alertmanager), 10, "both")
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
            for alert in alerts(alertmanager)
        )

    wait_until(sent_again, 10, "it is sent again before it expires")
    bench.tell(over(firing, at_s=time.time()), now_s=time.time())
    wait_until(
        lambda: ("LightkeeperIncident", "resolved") in paged(receiver), 15, "the end is paged"
    )
    assert ("LightkeeperIncident", "firing") in paged(receiver)
    assert ("LightkeeperHeld", "firing") in paged(receiver)
    wait_until(lambda: not alerts(alertmanager), 10, "nothing is left")
    assert bench.counted("alertmanager", "failed") == 0
    assert bench.counted("alertmanager", "dropped") == 0
