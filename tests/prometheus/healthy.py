"""What the shipped alerts say of a real fleet that trains on: some looks at its pages, drawn out.

A healthy hour cannot be waited for. Each counter of the pages is continued for 80 minutes as it
grew between the first look and the last, each gauge shows again and again what it showed, each time
stamp is again and again as old as it was, and promtool evaluates rules and alerts, with all their
pauses, over that.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards.promql import metrics
from tests.prometheus.server import RULES
from tests.waiting import wait_for

MINUTES: Final = 80
STANDS_MINUTES: Final = 20
"""More than one that stands is left alone."""
STEP_S: Final = 30.0
_Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Look:
    """All series of a fleet that rules and alerts read, at one time."""

    at_s: float
    values: dict[_Series, float]


@cache
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
        page = requests.get(f"{url}/metrics", timeout=10).text
        read = "".join(line for line in page.splitlines(keepends=True)
                       if line.partition(" ")[0].partition("{")[0] in wanted)  # fmt: skip
        for family in text_string_to_metric_families(read):
            values |= {
                (sample.name, tuple(sorted({**sample.labels, **target}.items()))): sample.value
                for sample in family.samples
            }
    return Look(at_s, values)


def drawn_out(looks: Sequence[Look], *, stands: bool = False) -> Iterator[dict[str, str]]:
    """promtool's input series, of a clock that begins with the last look; `stands`: none grows."""
    first, last = looks[0], looks[-1]
    minutes = STANDS_MINUTES if stands else MINUTES
    between_s, samples = last.at_s - first.at_s, int(minutes * 60 / STEP_S)
    for (name, labels), value in last.values.items():
        inside = ",".join(f"{label}={json.dumps(text)}" for label, text in labels)
        seen = [(look.at_s, look.values[name, labels])
                for look in looks if (name, labels) in look.values]  # fmt: skip
        if name.endswith("_total"):
            grown = 0.0 if stands else value - first.values.get((name, labels), value)
            notation = f"{value:.9f}{grown / between_s * STEP_S:+.9f}x{samples}"
        elif name.endswith("_timestamp_seconds"):  # as old as it was at a look
            clock = [0.0 if stands else number * STEP_S for number in range(samples)]
            ages = cycle([at_s - then for at_s, then in seen])
            notation = " ".join(f"{now - age:.9f}" for now, age in zip(clock, ages))  # noqa: B905
        else:
            notation = " ".join(f"{shown:.9f}" for _, shown in islice(cycle(seen), samples))
        yield {"series": f"{name}{{{inside}}}", "values": notation}


def alarms(series: Iterable[dict[str, str]], folder: Path, minutes: int = MINUTES) -> str:
    """What promtool says of alerts that fire at any minute of the time; empty: none."""
    cases = [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
             for minute in range(minutes)]  # fmt: skip
    step = f"{STEP_S:.0f}s"
    test = {
        "rule_files": [str(RULES / "rules.yml"), str(RULES / "alerts.yml")],
        "evaluation_interval": step,
        "tests": [{"interval": step, "input_series": list(series), "promql_expr_test": cases}],
    }
    file = folder / "healthy.yml"
    file.write_text(json.dumps(test))  # which is YAML, and quick to write
    words = ["promtool", "test", "rules", file]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 or "ALERTS" in done.stderr + done.stdout, done.stderr
    return "" if done.returncode == 0 else done.stderr + done.stdout


def assert_silent(monitor_url: str, folder: Path) -> None:
    """No alert fires while this fleet goes on; if it stood still instead, that would be told."""
    looks = [look(monitor_url)]
    wait_for(lambda: _looked(monitor_url, looks), within_s=90, what="it commits")
    firing = alarms(drawn_out(looks), folder)
    assert not firing, firing
    stands = drawn_out(looks, stands=True)
    assert "LightkeeperTrainingStandsStill" in alarms(stands, folder, STANDS_MINUTES)


def _looked(monitor_url: str, looks: list[Look]) -> bool:
    """Ten looks a second apart at least, until every group has committed twenty steps."""
    if time.time() - looks[-1].at_s >= 1.0:
        looks.append(look(monitor_url))
    first, last = looks[0].values, looks[-1].values
    grown = [value - first.get(name, value) for name, value in last.items()
             if name[0] == "lightkeeper_group_commits_total"]  # fmt: skip
    return len(looks) >= 10 and bool(grown) and min(grown) >= 20
