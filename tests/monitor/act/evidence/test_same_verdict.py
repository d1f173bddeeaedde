"""`lightkeeper analyze BUNDLE` says offline what the monitor had said online."""

from __future__ import annotations

import json

import pytest

from lightkeeper.monitor.records.files import load_job, read_manifest
from tests.changed import replace
from tests.deep import EXPLORES
from tests.monitor.act.evidence.scene import REAL, mirror, over_http, snapshot_of, until_firing
from tests.monitor.fleet import Drive, SimFleet, at, crash, gil, hang, jam, mismatch, slow, stop
from tests.monitor.process import lightkeeper


def analyze(*words) -> tuple[int, str]:
    """In a process of its own: it forks, and here are the threads of a monitor, with locks."""
    done = lightkeeper("analyze", *map(str, words))
    return done.returncode, done.stdout


def offline(path) -> tuple[int, dict]:
    status, said = analyze(path, "--format", "json")
    return status, json.loads(said)


def fired(sim: SimFleet, make, http):
    """The first incident that fires, and its bundle."""
    drive, last = snapshot_of(Drive(sim))
    bench = make()
    incident = until_firing(drive, each=lambda: bench.take(last()))
    mirror(sim, http)
    bench.take(over_http(last(), http), incident)
    return incident, bench.bundle(incident.id, "firing")


FAULTS = {
    "hang outside": (hang("rg_1.0"), "not_entered", ["rg_1.0"], "same"),
    "GIL held": (gil("rg_1.1"), "not_entered", ["rg_1.1"], "same"),
    "stopped": (stop("rg_1.0"), "not_entered", ["rg_1.0"], "same"),
    "wrong op": (mismatch("rg_1.1"), "mismatch", ["rg_1.1"], "same"),
    "wrong size": (mismatch("rg_1.2", "size"), "mismatch", ["rg_1.2"], "same"),
    "a jammed link": (jam("rg_1"), "deadlock", ["rg_1.0", "rg_1.1", "rg_1.2"], "same"),
    "killed": (crash("rg_1.1"), "dead", ["rg_1.1"], None),
    "slow": (slow("rg_1.0", 5.0), "straggler", ["rg_1.0"], None),
}


EXPLORED = ("GIL held", "stopped", "wrong size")
"""Told as others are: two like "hang outside", one like "wrong op"."""


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("name", [name for name in FAULTS if EXPLORES or name not in EXPLORED])
def test_the_verdict_offline_is_the_one_online(name, make, http) -> None:
    fault, kind, culprits, records_say = FAULTS[name]
    sim = SimFleet(groups=3, world_size=3, script=[at(8, fault)])
    incident, bundle = fired(sim, make, http)
    assert (incident.kind, list(incident.suspects)) == (kind, culprits)
    status, report = offline(bundle.path)
    verdict = report["monitor"]
    assert status == 1
    assert (verdict["kind"], verdict["culprits"]) == (kind, list(incident.culprits))
    assert verdict["candidates"] == list(incident.candidates)
    assert (verdict["confidence"], verdict["reason"]) == (
        incident.verdict.confidence, incident.verdict.reason,
    )  # fmt: skip
    if incident.verdict.confidence != "unsure":
        assert [report["names"][str(rank)] for rank in report["culprits"]] == culprits
    if records_say is not None:
        assert verdict["records_say"] == records_say


def test_the_page_and_the_text_give_the_monitors_verdict_first(make, http, tmp_path) -> None:
    sim = SimFleet(groups=3, world_size=3, script=[at(8, hang("rg_1.0"))])
    _, bundle = fired(sim, make, http)
    html = tmp_path / "report.html"
    status, text = analyze(bundle.path, "--html", html)
    assert status == 1
    assert text.startswith("The monitor's verdict: rg_1.0 (not_entered, ")
    assert "second look: the flight records by themselves say the same" in text
    assert "The monitor&#x27;s verdict: rg_1.0" in html.read_text().replace("&#39;", "&#x27;")


def test_records_are_dated_by_the_manifest(make, http) -> None:
    sim = SimFleet(groups=3, world_size=3, script=[at(8, hang("rg_1.0"))])
    _, bundle = fired(sim, make, http)
    job = load_job([bundle.path])
    taken = {
        part["rank"]: int(part["taken_s"] * 1e9)
        for part in bundle.moments["firing"]["parts"]
        if part["part"] == "flight_recorder"
    }
    assert {job.names[rank]: info.taken_ns for rank, info in job.ranks.items()} == taken
    assert (job.columns["created_ns"] > 0).all()


def test_where_nobody_answers_any_more_the_monitors_verdict_stands(make, http) -> None:
    sim = SimFleet(groups=3, world_size=1, script=[at(8, gil("rg_1.0"))])
    bench = make(evidence_deadline_s=0.5)
    drive, last = snapshot_of(Drive(sim))
    incident = until_firing(drive, each=lambda: bench.take(last()))
    nobody = [replace(observation, url="http://127.0.0.1:9") for observation in last().observations]
    bench.take(replace(last(), observations=tuple(nobody)), incident)
    bundle = bench.bundle(incident.id, "firing")
    (culprit,) = incident.culprits
    assert bundle.part(culprit, "flight_recorder")["status"] == "unreachable"
    status, report = offline(bundle.path)
    assert status == 1
    assert report["monitor"]["culprits"] == [culprit]
    assert report["ranks_read"] == []


def test_the_bundle_of_a_real_fleet_in_which_a_rank_held_the_gil() -> None:
    # saved by `lightkeeper demo --groups 2 --ranks-per-group 2 --fault gil`, 2026-11-21
    status, report = offline(REAL)
    verdict = report["monitor"]
    assert status == 1
    assert (verdict["kind"], verdict["culprits"], verdict["records_say"]) == (
        "not_entered", ["rg_1.1"], "same",
    )  # fmt: skip
    assert [offline_verdict["culprits"] for offline_verdict in report["verdicts"]] == [
        report["culprits"]
    ]


def test_of_two_bundles_the_later_is_read_and_nothing_is_mixed(make, http, tmp_path) -> None:
    sim = SimFleet(groups=3, world_size=3, script=[at(8, hang("rg_1.0"))])
    _, bundle = fired(sim, make, http)
    both = [tmp_path / "both" / name for name in ("a.zip", "b.zip")]
    both[0].parent.mkdir()
    for path, source in zip(both, (REAL, bundle.path), strict=True):
        path.write_bytes(source.read_bytes())
    earlier, later = sorted(both, key=lambda path: read_manifest(str(path)).latest_s)
    status, report = offline(tmp_path / "both")
    assert (status, report["monitor"]["bundle"]) == (1, str(later))
    assert report["problems"] == [
        {"path": str(earlier), "rank": None, "reason": f"left out: {later} is of a later incident"}
    ]
