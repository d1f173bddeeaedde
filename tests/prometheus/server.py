"""A real Prometheus for tests, on loopback, with its data in a folder that goes away.

with prometheus(config_text) as prom:
    prom.query("up")                     # [Sample(labels, value), ...]
    prom.wait_for("up == 1", within_s=20)
    prom.url                             # for who asks it himself
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.ports import free_port
from tests.prometheus.series import write_past
from tests.waiting import wait_for

RULES: Final = Path(__file__).parents[2] / "dashboards" / "prometheus"
"""Where our rules and alerts are."""

_CONFIG: Final = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files:
{rules}
scrape_configs:
  - job_name: lightkeeper
    static_configs:
      - targets: ["{monitor}"]
  - job_name: lightkeeper-ranks
    http_sd_configs:
      - url: http://{monitor}/v1/sd
        refresh_interval: 1s
    metric_relabel_configs:
      - regex: exported_(job_id|replica_group|rank)
        action: labeldrop
"""


@dataclass(frozen=True)
class Sample:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A running server."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def api(self, path: str, **params: str) -> Any:
        """`data` of one answer of the HTTP API; fails with Prometheus's own words."""
        answer = requests.get(f"{self.url}/api/v1/{path}", params=params, timeout=30)
        body = answer.json()
        assert body["status"] == "success", f"{path} {params}: {body.get('error')}"
        return body["data"]

    def query(self, expr: str) -> list[Sample]:
        """The instant vector (or scalar) of `expr` now."""
        answer = self.api("query", query=expr)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(row["metric"], float(row["value"][1])) for row in answer["result"]]

    def wait_for(self, expr: str, *, within_s: float = 30.0) -> list[Sample]:
        """The first answer of `expr` that is not empty."""
        return wait_for(lambda: self.query(expr), within_s=within_s, what=expr)

    def alerts(self) -> dict[str, str]:
        """Alert -> pending or firing, of those that are either."""
        return {
            alert["labels"]["alertname"]: alert["state"] for alert in self.api("alerts")["alerts"]
        }

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(errors="replace")


def example_config(monitor_url: str, *rules: Path) -> str:
    """As dashboards/prometheus/prometheus.example.yml, with a second for every interval.

    Args:
        monitor_url: of the monitor, which tells the ranks by `/v1/sd`.
        rules: files of rules; all of ours, if none is named.
    """
    files = rules or (RULES / "rules.yml", RULES / "alerts.yml")
    listed = "\n".join(f"  - {path.resolve()}" for path in files)
    return _CONFIG.format(rules=listed, monitor=monitor_url.removeprefix("http://"))


@contextmanager
def prometheus(
    config_text: str, *flags: str, past: Sequence[str] = (), data: Path | None = None
) -> Iterator[Prometheus]:
    """A server with this configuration, up; the test is skipped where there is none.

    Args:
        config_text: its configuration.
        flags: more of the command line.
        past: samples of before, as lines of OpenMetrics.
        data: the folder of its data; None: one that goes away.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    with tempfile.TemporaryDirectory(prefix="lightkeeper-prometheus-") as name:
        folder = Path(name)
        config, log = folder / "prometheus.yml", folder / "log"
        config.write_text(config_text)
        if past:
            write_past(past, folder / "data")
        address = f"127.0.0.1:{free_port()}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [binary, f"--config.file={config}",
                 f"--storage.tsdb.path={data or folder / 'data'}",
                 f"--web.listen-address={address}", "--log.level=warn",
                 "--rules.alert.resend-delay=1s", *flags],
                stdout=out, stderr=out,
            )  # fmt: skip
        try:
            server = Prometheus(f"http://{address}", log)
            wait_for(lambda: _ready(process, server), within_s=30, what="Prometheus is ready")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _ready(process: subprocess.Popen[bytes], server: Prometheus) -> bool:
    assert process.poll() is None, server.log()
    try:
        return requests.get(f"{server.url}/-/ready", timeout=5).ok
    except requests.RequestException:
        return False
