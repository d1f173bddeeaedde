"""What a run on the lab comes to, and its page: without a lab."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import yaml

from tests.charts import helm
from tests.examples.fleet import Fleet
from tests.kubernetes import __main__ as command
from tests.kubernetes import chart, jobset, lab, measures, page
from tests.kubernetes.job import _LAB, only, without
from tests.kubernetes.scenarios import SCENARIOS, judge


def steps(rank: str, *at: tuple[float, int], participants: int = 2) -> list[dict[str, Any]]:
    """Committed steps of a rank: (time, step)."""
    return [{"time": time_s, "event": "step", "rank": rank, "pod": "p", "step": step,
             "committed": True, "participants": participants} for time_s, step in at]  # fmt: skip


def started(rank: str, time_s: float) -> dict[str, Any]:
    return {"time": time_s, "event": "started", "rank": rank, "pod": "p", "step": 0}


def test_a_gap_begins_at_the_last_commit_before_the_act():
    assert measures.gap([1.0, 9.5, 13.0, 13.5], 10.0, 14.0) == 3.5


def test_a_gap_lasts_to_the_end_when_nothing_is_committed_any_more():
    assert measures.gap([9.5], 10.0, 70.0) == 60.5
    assert measures.gap([], 10.0, 70.0) == 60.0


def test_the_jobs_gap_is_the_time_in_which_no_rank_commits():
    rows = [*steps("rg_0.0", (9, 1), (12, 2), (18, 3)), *steps("rg_1.0", (9, 1), (15, 2), (18, 3))]
    assert measures.gaps(rows, 10, 18) == {"job": 3, "rg_0.0": 6, "rg_1.0": 6}


def test_the_pace_is_that_of_the_time_before():
    rows = [*steps("rg_0.0", (1, 1), (3, 2), (5, 3), (30, 4), (31, 5))]
    assert measures.pace(rows, 10) == 2
    assert measures.pace([], 10) is None


@pytest.mark.parametrize(
    ("after", "deepest"),
    [([(12, 51)], 0), ([(12, 50)], 0), ([(12, 1), (13, 2)], 49), ([(12, 41), (13, 51)], 9)],
    ids=["goes on", "a rank is a step behind", "begins anew", "from a checkpoint"],
)
def test_lost_steps_are_those_that_were_made_again(after, deepest):
    rows = [*steps("rg_0.0", (9, 49), (10, 50)), *steps("rg_1.0", *after)]
    assert measures.lost(rows, 11) == deepest


def test_a_group_is_back_when_it_commits_with_all_others_after_its_last_start():
    rows = [
        started("rg_1.0", 1), *steps("rg_1.0", (2, 1), (9, 2)),
        started("rg_1.0", 15), started("rg_1.1", 15), started("rg_1.0", 20),
        *steps("rg_1.0", (18, 3)), *steps("rg_1.0", (22, 3), participants=1),
        *steps("rg_1.0", (25, 4)),
    ]  # fmt: skip
    assert measures.starts(rows, 10) == {"rg_1": [5, 10]}
    assert measures.back(rows, 10, 2) == {"rg_1": 15}


def test_a_group_that_began_anew_and_does_not_train_is_not_back():
    assert measures.back([started("rg_1.0", 15)], 10, 2) == {"rg_1": None}


def test_the_first_sentence_is_that_of_two_seconds_after_it_fired():
    incident = {"fired": 6.0, "sentences": [[3.0, "is late"], [8.4, "is lost"], [9.0, "is away"]]}
    assert measures.said(incident) == [8.4, "is lost"]
    assert measures.said({**incident, "fired": None}) == []


def record(scenario: str, **more: Any) -> dict[str, Any]:
    """A good run of a group's end."""
    incident = {"kind": "dead", "fired": 2.0, "evicted": [],
                "sentences": [[2.0, "it was drained"]]}  # fmt: skip
    return {
        "key": f"{scenario}@now", "scenario": scenario, "label": "now", "code": "abc",
        "lost": 0, "gaps": {"job": 1.5, "rg_0.0": 1.5}, "pace": 0.1, "starts": {"rg_1": [20.0]},
        "back": {"rg_1": 31.0}, "incidents": [incident], "quarantined": [], "cordoned": False,
        "notes": {}, "torch": "2.13.0", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "more", "missed"),
    [
        ("drain-group", {}, []),
        ("drain-group", {"lost": 40}, ["40 steps lost"]),
        ("drain-group", {"back": {"rg_1": None}}, ["rg_1 does not train again"]),
        ("drain-group", {"back": {}}, ["rg_1 does not train again"]),
        ("drain-group", {"back": {"rg_1": 95.0}}, ["rg_1 trains again after 95.0 s, not 90"]),
        ("drain-group", {"starts": {"rg_0": [3.0], "rg_1": [20.0]}}, ["rg_0 ended"]),
        ("drain-group", {"gaps": {"job": 12.1}}, ["no commit for 12.0 s beyond a step, not 10"]),
        ("drain-group", {"quarantined": ["node-b"]}, ["in quarantine: node-b"]),
        ("rollout", {}, ["rg_1 ended"]),
        ("rollout", {"starts": {}, "incidents": []}, []),
        ("freeze-node", {}, ["its node is not cordoned"]),
        ("freeze-node", {"cordoned": True, "quarantined": ["node-b"]}, []),
        ("preempt", {}, ["no first sentence has `preempt`"]),
    ],
)
def test_a_run_is_good_or_what_it_misses_is_said(scenario, more, missed):
    assert judge(record(scenario, **more), SCENARIOS[scenario]) == missed


def test_the_page_has_a_row_a_run_and_both_codes():
    before = record("drain-group", label="before", code="old", lost=7)
    text = page.render([before, record("drain-group", notes={"old pod": "gone", "seen": True})])
    assert "**before**: old; **now**: abc" in text
    assert text.count("| `drain-group`") == 2
    assert "7 steps lost" in text
    assert "dead after 2 s: *it was drained*" in text
    assert "old pod: gone; seen: yes" in text


def test_scenarios_are_chosen_by_name_or_pattern():
    assert [scenario.name for scenario in command.chosen(["rollout"])] == ["rollout"]
    assert [scenario.name for scenario in command.chosen(["rollout.*"])] == [
        "rollout",
        "rollout-2s",
    ]
    assert len(command.chosen([])) == len(SCENARIOS)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1)])
def test_a_group_is_a_job_set_of_so_many_nodes(nodes, ranks):
    (_, text) = jobset.groups(("rg_0", "rg_1"), "-m train", nodes).split("---\n")
    assert text.count("rg_1") == 2
    assert "rg_0" not in text
    assert f"completions: {nodes}\n" in text
    assert f"--nnodes={nodes}\n" in text
    assert f"--nproc-per-node={ranks}\n" in text


def test_without_a_gate_nothing_of_it_is_patched():
    assert "lightkeeper-gate" in _LAB
    assert "lightkeeper-gate" not in without(_LAB, "lightkeeper-gate")
    assert without(_LAB, "lightkeeper-gate").count("- target:") == _LAB.count("- target:") - 1
    assert yaml.safe_load(only(_LAB, "lighthouse"))[0]["target"]["name"] == "lighthouse"
    assert only(_LAB, "lighthouse").count("- target:") == 1


def test_what_is_missing_for_a_lab_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(lab.shutil, "which", {"apt-get": "/usr/bin/apt-get"}.get)
    monkeypatch.setattr(lab, "FOLDER", tmp_path)
    assert command.main(["run", "rollout"]) == 3
    said = capsys.readouterr().err
    assert "root" in said
    assert "go (" in said
    assert "dockerd" not in said


@pytest.mark.integration
@pytest.mark.skipif(helm.helm() is None, reason="helm is neither on PATH nor in /var/tmp/helm/bin")
@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
def test_the_lab_changes_of_the_chart_only_what_a_lab_is_short_of(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "FOLDER", tmp_path)
    given = chart.values(2, gate=True)
    renderer = chart.renderer(tmp_path / "chart", only(_LAB, "lighthouse"))
    done = helm.call(
        "template", chart.RELEASE, helm.CHART, "--namespace", chart.RELEASE,
        "--post-renderer", renderer, values=given,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = Fleet(tuple(item for item in yaml.safe_load_all(done.stdout) if item))
    plain = helm.chart(given)
    assert len(made.objects) == len(plain.objects)
    for name, namespace in (("lightkeeper", "lightkeeper"), ("lightkeeper-gate", "train")):
        assert made.one("Deployment", name, namespace) == plain.one("Deployment", name, namespace)
    volumes = made.one("Deployment", "lighthouse")["spec"]["template"]["spec"]["volumes"]
    assert [volume["name"] for volume in volumes] == ["tmp", "libraries"]
