"""One scenario: a fresh job, the act, a look on, and the record of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import requests

from experiments.harness import say
from experiments.watch import Seen
from tests.kubernetes import lab, measures
from tests.kubernetes.job import GROUPS, Job
from tests.kubernetes.lab import LabError, kubectl
from tests.kubernetes.scenarios import VICTIM, Scenario, Stage, judge
from tests.kubernetes.watch import Watch


def run(scenario: Scenario, label: str, folder: Path) -> dict[str, Any]:
    """The record of one run; its evidence in the folder.

    Raises:
        LabError: the job did not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(scenario.step_s, gate=scenario.gate, more=scenario.more, jobset=scenario.jobset,
              helm=scenario.helm)  # fmt: skip
    job.start()
    watch = Watch(job)
    watch.old = {row["id"] for row in job.ask("/v1/incidents")["incidents"]}
    stage = Stage(job, watch)
    places = {group: job.node(group) for group in GROUPS}
    watch.start()
    time.sleep(8 + 4 * scenario.step_s)  # a pace is measured, and learned
    try:
        scenario.play(stage)
        _settle(stage, scenario)
    except LabError as exc:
        stage.act(f"the lab: {exc}")
    finally:
        watch.close()
        made = record(stage, scenario, label, places)
        _keep(stage, folder, made)
    return made


def _settle(stage: Stage, scenario: Scenario) -> None:
    """Until the groups train together again, and a while longer."""
    deadline = time.monotonic() + scenario.limit_s
    since = None
    while time.monotonic() < deadline + scenario.settle_s:
        if not stage.job.together():
            since = None
            if time.monotonic() > deadline:
                return
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > scenario.settle_s:
            return
        time.sleep(1)


def record(
    stage: Stage, scenario: Scenario, label: str, places: dict[str, str]
) -> dict[str, Any]:  # fmt: skip
    """What is kept of a run; times are seconds after the first act."""
    rows, at_s, until_s = stage.job.rows(), stage.at_s, time.time()
    watch, node = stage.watch, places[VICTIM]
    made = {
        "key": f"{scenario.name}@{label}", "scenario": scenario.name, "label": label,
        "step_s": scenario.step_s, "gate": scenario.gate,
        "acts": stage.acts,
        "pace": measures.pace(rows, at_s),
        "gaps": measures.gaps(rows, at_s, until_s),
        "lost": measures.lost(rows, at_s),
        "uncommitted": measures.uncommitted(rows, at_s),
        "starts": measures.starts(rows, at_s),
        "back": measures.back(rows, at_s, len(GROUPS)),
        "incidents": [_short(seen, at_s) for seen in watch.seen.values()],
        "quarantined": sorted(watch.quarantined),
        "cordoned": any(name == node and "ours" in state for _, name, state in watch.events),
        "places": places,
        "events": [[round(seen_s - at_s, 1), name, state]
                   for seen_s, name, state in watch.events if seen_s > at_s],
        "headlines": _headlines(watch, at_s),
        "monitor away": watch.away,
        "notes": stage.notes,
        "seconds": round(until_s - at_s, 1),
    }  # fmt: skip
    made["missed"] = judge(made, scenario)
    return made


def _headlines(watch: Watch, at_s: float) -> list[list[Any]]:
    """Those of a new shape, at most 30."""
    shapes, rows = set(), []
    for seen_s, text in watch.headlines:
        shape = "".join(letter for letter in text if not letter.isdigit() and letter != ".")
        if seen_s > at_s and shape not in shapes:
            shapes.add(shape)
            rows.append([round(seen_s - at_s, 1), text])
    return rows[:30]


def _short(seen: Seen, at_s: float) -> dict[str, Any]:
    """An incident: what it said."""
    latest = seen.latest
    fired_s, back_s = (latest["milestones"].get(name) for name in ("firing_s", "rejoined_s"))
    return {
        "kind": latest["kind"],
        "fired": None if fired_s is None else round(fired_s - at_s, 1),
        "rejoined": None if back_s is None else round(back_s - at_s, 1),
        "over": _over(latest, at_s),
        "state": latest["state"], "severity": latest["severity"],
        "confidence": latest["confidence"], "accused": seen.accused,
        "sentences": [[round(seen_s - at_s, 1), text] for seen_s, text in seen.sentences[:12]],
        "evicted": sorted({entry["group"] for entry in latest.get("evictions") or ()}),
        "decisions": [[entry["action"], entry["state"], entry["outcome"]]
                      for entry in latest.get("decisions") or ()][:12],
    }  # fmt: skip


def _over(incident: dict[str, Any], at_s: float) -> list[Any] | None:
    """When it was over, and why; None: it is not."""
    rows = [row for row in incident["story"] if row["to"] == "resolved"]
    return [round(rows[-1]["at_s"] - at_s, 1), rows[-1]["reason"]] if rows else None


def _keep(stage: Stage, folder: Path, made: dict[str, Any]) -> None:
    """Logs of the control plane, pods, incidents and steps."""
    folder.joinpath("record.json").write_text(json.dumps(made, indent=1))
    with folder.joinpath("steps.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in stage.job.rows())
    with folder.joinpath("snapshots.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in stage.watch.snapshots)
    try:
        incidents = {seen: stage.watch.seen[seen].latest for seen in stage.watch.seen}
        folder.joinpath("incidents.json").write_text(json.dumps(incidents, indent=1))
        pods = {name: lab.Api().pods(name) for name in ("train", "lightkeeper")}
        folder.joinpath("pods.json").write_text(json.dumps(pods, indent=1))
        for pod in (*pods["train"], *pods["lightkeeper"]):
            meta = pod["metadata"]
            text = kubectl("-n", meta["namespace"], "logs", meta["name"], "--tail=4000",
                           limit_s=20, check=False)  # fmt: skip
            folder.joinpath(f"{meta['name']}.log").write_text(text)
    except (LabError, requests.RequestException, ValueError) as exc:
        say(f"   evidence is not whole: {exc}")
