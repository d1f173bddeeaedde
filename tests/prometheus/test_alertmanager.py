"""Every shipped alert fires on its fault in a real Prometheus, and reaches its person by a real
Alertmanager with the shipped recipes: PagerDuty and Opsgenie at once, Slack for the rest.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from tests.prometheus import series
from tests.prometheus.alertmanager import Pagers, alertmanager
from tests.prometheus.server import RULES, prometheus
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CONFIG = """\
global: {{evaluation_interval: 1s}}
rule_files:
  - {rules}
  - {alerts}
alerting:
  alertmanagers: [{{static_configs: [{{targets: ["{alertmanager}"]}}]}}]
"""
TRIALS = [
    block for block in yaml.load((RULES / "tests.yml").read_text(), yaml.BaseLoader)["tests"]
    if block["name"].startswith("Lightkeeper")
]  # fmt: skip
"""Of alerts. All texts: for PyYAML `0x40` is a number."""
SEVERITY = {
    rule["alert"]: rule["labels"]["severity"]
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}  # fmt: skip
INHIBITED = {"LightkeeperNoCommits"}
"""By LightkeeperTrainingStandsStill: the same fact."""


@pytest.fixture
def pagers() -> Iterator[Pagers]:
    made = Pagers()
    yield made
    made.close()


def seconds(text: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return float(sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([hms])", text)))


def everything_sick(at_s: float) -> Iterator[str]:
    """Each alert's own trial, as it is when it fires, beside its healthy neighbour."""
    for number, block in enumerate(TRIALS):
        eval_s = next(seconds(case["eval_time"]) for case in block["promql_expr_test"]
                      if case.get("exp_samples"))  # fmt: skip
        yield from series.past(block, at_s, eval_s, str(number))


def hasty(folder: Path) -> Path:
    """The alerts without the time that they wait, which promtool tries."""
    path = folder / "alerts.yml"
    path.write_text(re.sub(r"\n        for: \w+", "", (RULES / "alerts.yml").read_text()))
    return path


def names(texts: list[str]) -> set[str]:
    return {name for name in SEVERITY for text in texts if name in text}


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
def test_every_alert_fires_and_reaches_whom_its_severity_says(pagers, tmp_path) -> None:
    with alertmanager(pagers.recipes(tmp_path), tmp_path) as url:
        config = CONFIG.format(
            rules=RULES / "rules.yml", alerts=hasty(tmp_path),
            alertmanager=url.removeprefix("http://"),
        )  # fmt: skip
        lines = list(everything_sick(time.time() - 1))
        with prometheus(config, past=lines) as prom:
            wait_for(lambda: prom.alerts().keys() == SEVERITY.keys(), within_s=60, what="all fire")
            firing = prom.api("alerts")["alerts"]
            sick = {str(sorted(alert["labels"].items())) for alert in firing}
            assert not [labels for labels in sick if "well" in labels or "kept" in labels]
            assert len(firing) == len(SEVERITY)
            urgent = {name for name in SEVERITY if SEVERITY[name] == "critical"} - INHIBITED

            def arrived() -> bool:
                paged = names([body["payload"]["class"] for body in pagers.bodies("/pagerduty")])
                called = names([str(body["tags"]) for body in pagers.bodies("/opsgenie")])
                read = {
                    attachment["title_link"] for body in pagers.bodies("/slack")
                    for attachment in body["attachments"]
                }  # fmt: skip
                return paged == called == urgent and len(read) == len(SEVERITY) - len(
                    urgent | INHIBITED
                )

            wait_for(arrived, within_s=60, what="everybody is told")

            def quiet() -> set[str]:
                listed = requests.get(f"{url}/api/v2/alerts", timeout=10).json()
                return {alert["labels"]["alertname"] for alert in listed
                        if alert["status"]["state"] == "suppressed"}  # fmt: skip

            wait_for(lambda: quiet() == INHIBITED, within_s=60, what="one is held back")
    texts = [attachment["text"] for body in pagers.bodies("/slack")
             for attachment in body["attachments"]]  # fmt: skip
    assert all("http://127.0.0.1:8470/runbooks#" in text for text in texts)
    assert all("/runbooks#" in body["payload"]["custom_details"]["runbook"]
               for body in pagers.bodies("/pagerduty"))  # fmt: skip
