"""What the shipped alerts say of a real fleet that trains on: two looks at its pages, drawn out.

A healthy hour cannot be waited for. Each series of the pages is continued for 80 minutes as it grew
between the looks, and promtool evaluates rules and alerts, with all their pauses, over that.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards.promql import metrics
from tests.prometheus.server import RULES
from tests.waiting import wait_for

MINUTES: Final = 80
STEP_S: Final = 15.0
_Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Look:
    """All series of a fleet that rules and alerts read, at one time."""

    at_s: float
    values: dict[_Series, float]


def read_by_rules() -> set[str]:
    groups = [group for name in ("rules.yml", "alerts.yml")
              for group in yaml.safe_load((RULES / name).read_text())["groups"]]  # fmt: skip
    return {name for group in groups for rule in group["rules"] for name in metrics(rule["expr"])}


def look(monitor_url: str) -> Look:
    """As a Prometheus with prometheus.example.yml scrapes monitor and ranks."""
    at_s, wanted = time.time(), read_by_rules()
    targets = [({"job": "lightkeeper"}, monitor_url)]
    for row in requests.get(f"{monitor_url}/v1/sd", timeout=10).json():
        labels = {name: text for name, text in row["labels"].items() if not name.startswith("__")}
        targets += [({"job": "lightkeeper-ranks", **labels}, f"http://{address}")
                    for address in row["targets"]]  # fmt: skip
    values: dict[_Series, float] = {}
    for labels, url in targets:
        target = {**labels, "instance": url.removeprefix("http://")}
        values["up", tuple(sorted(target.items()))] = 1.0
        for family in text_string_to_metric_families(
            requests.get(f"{url}/metrics", timeout=10).text
        ):
            values |= {
                (sample.name, tuple(sorted({**sample.labels, **target}.items()))): sample.value
                for sample in family.samples if sample.name in wanted
            }  # fmt: skip
    return Look(at_s, values)


def drawn_out(first: Look, last: Look, *, stands: bool = False) -> Iterator[dict[str, str]]:
    """promtool's input series, of a clock that begins with the last look; `stands`: none grows."""
    between_s = last.at_s - first.at_s
    for (name, labels), value in last.values.items():
        grown = 0.0 if stands else value - first.values.get((name, labels), value)
        start = value - last.at_s if name.endswith("_timestamp_seconds") else value
        inside = ",".join(f"{label}={json.dumps(text)}" for label, text in labels)
        slope = grown / between_s * STEP_S
        yield {"series": f"{name}{{{inside}}}",
               "values": f"{start:.9f}{slope:+.9f}x{int(MINUTES * 60 / STEP_S)}"}  # fmt: skip


def alarms(series: Iterable[dict[str, str]], folder: Path) -> str:
    """What promtool says of alerts that fire at any minute of the time; empty: none."""
    cases = [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
             for minute in range(MINUTES)]  # fmt: skip
    test = {
        "rule_files": [str(RULES / "rules.yml"), str(RULES / "alerts.yml")],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": list(series), "promql_expr_test": cases}],
    }
    file = folder / "healthy.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", file],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0 or "ALERTS" in done.stderr + done.stdout, done.stderr
    return "" if done.returncode == 0 else done.stderr + done.stdout


def assert_silent(monitor_url: str, folder: Path) -> None:
    """No alert fires while this fleet goes on; if it stood still instead, that would be told."""
    first = look(monitor_url)
    last = wait_for(lambda: _later(monitor_url, first), within_s=60, what="it commits")
    assert alarms(drawn_out(first, last), folder) == ""
    assert "LightkeeperTrainingStandsStill" in alarms(drawn_out(first, last, stands=True), folder)


def _later(monitor_url: str, first: Look) -> Look | None:
    """A look when every group has committed twenty steps more, ten ticks of the monitor later."""
    now = look(monitor_url)
    commits = [name for name in now.values if name[0] == "lightkeeper_group_commits_total"]
    grown = [now.values[name] - first.values.get(name, now.values[name]) for name in commits]
    ticks = now.at_s - first.at_s
    return now if grown and min(grown) >= 20 and ticks >= 10 else None
