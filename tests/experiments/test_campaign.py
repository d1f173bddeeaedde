"""What the campaign does without a fleet: the plan and the judgement."""

from __future__ import annotations

import pytest

from experiments.campaign.classes import CLASSES, Run, plan
from experiments.campaign.judge import judge
from experiments.watch import Seen
from lightkeeper.trainer import faults

EVERYTHING = plan(4, 5)


def a_run(name="hang-data", rank="rg_1.0", shape="2x2"):
    return Run(name, 0, 5, shape, rank, rank.rpartition(".")[0], 3, {"kind": "hang"})


def incident(*culprits, kind="not_entered", first=101.0, firing=102.0, **more):
    return {
        "id": f"{kind}-{'-'.join(culprits)}",
        "kind": kind,
        "state": "firing" if firing else "pending",
        "culprits": list(culprits),
        "candidates": [],
        "groups": sorted({rank.rpartition(".")[0] for rank in culprits}),
        "confidence": "certain",
        "reason": "because",
        "resolution": None,
        "milestones": {"first_seen_s": first, "firing_s": firing, **more},
        "story": [{"at_s": first, "to": "pending", "reason": "because"}],
        "decisions": [],
    }


def seen(*incidents):
    sightings = []
    for first in incidents:
        sightings.append(Seen(101.0, first))
        sightings[-1].look(first, 101.0)
    return sightings


STRUCK = {"time": 100.0, "step": 7, "phase": "data", "fault": {"kind": "hang"}}


# -- plan ------------------------------------------------------------------------------------


def test_the_plan_is_the_seed_s_and_nothing_else_s():
    assert plan(4, 5) == EVERYTHING
    assert plan(4, 5, ["2x2"]) == [run for run in EVERYTHING if run.shape == "2x2"]
    assert plan(4, 6) != EVERYTHING


def test_every_class_has_its_runs_in_shapes_that_it_has():
    for name, fault_class in CLASSES.items():
        mine = [run for run in EVERYTHING if run.name == name]
        assert [run.number for run in sorted(mine, key=lambda r: r.number)] == [0, 1, 2, 3]
        assert {run.shape for run in mine} == set(fault_class.shapes)


def test_every_planned_fault_is_one_that_the_injector_understands():
    for run in EVERYTHING:
        for rank in run.hit if run.kind.act == "inject" else ():
            faults.parse_fault({**run.fault, "id": "one", "rank": rank, "step": 3})


# -- judgement -------------------------------------------------------------------------------


def test_the_right_rank_and_kind_alone_is_exact():
    line = judge(a_run(), seen(incident("rg_1.0", evict_asked_s=103.5)), STRUCK)

    assert (line["detected"], line["exact"], line["wrong"]) == (True, True, [])
    assert (line["to_firing"], line["to_evict_asked"], line["to_rejoined"]) == (2.0, 3.5, None)


@pytest.mark.parametrize(
    ("incidents", "detected"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([incident("rg_1.0", firing=None)], False, id="pending-only"),
        pytest.param([incident("rg_1.1")], True, id="its-neighbour"),
        pytest.param([incident("rg_1.0", "rg_1.1")], True, id="both"),
        pytest.param([incident("rg_1.0", kind="dead")], True, id="another-kind"),
        pytest.param([incident("rg_1.0"), incident("rg_0.0")], True, id="a-victim-as-well"),
    ],
)
def test_anything_else_is_not_exact(incidents, detected):
    line = judge(a_run(), seen(*incidents), STRUCK)

    assert (line["detected"], line["exact"]) == (detected, False)


def test_a_dropped_accusation_is_noted_and_costs_no_exactness():
    line = judge(a_run(), seen(incident("rg_1.0"), incident("rg_0.1", firing=None)), STRUCK)

    assert line["exact"]
    assert [(accusation["rank"], accusation["state"]) for accusation in line["wrong"]] == [
        ("rg_0.1", "pending")
    ]


def test_a_culprit_that_was_taken_back_later_stays_on_record():
    (sighting,) = seen(incident("rg_0.0"))
    sighting.look(incident("rg_1.0"), 102.0)

    line = judge(a_run(), [sighting], STRUCK)

    assert [(w["rank"], w["state"]) for w in line["wrong"]] == [("rg_0.0", "firing")]
    assert not line["exact"]


def test_an_incident_that_cannot_tell_accuses_nobody_and_names_nobody_exactly():
    tie = {**incident("rg_0.0", "rg_0.1", kind="deadlock"), "confidence": "unsure"}
    tie |= {"culprits": [], "candidates": tie["culprits"]}

    line = judge(a_run(), seen(tie, incident("rg_1.0")), STRUCK)

    assert (line["exact"], [accusation["unsure"] for accusation in line["wrong"]]) == (
        True,
        [True, True],
    )
    assert not judge(a_run(rank="rg_0.0"), seen(tie), STRUCK)["exact"]


def test_a_death_seen_before_its_reason_is_not_the_verdict():
    run = a_run("mismatch-size")
    early, right = incident("rg_1.0", kind="dead"), incident("rg_1.0", kind="mismatch", firing=104)

    line = judge(run, seen(early, right), STRUCK)

    assert (line["kind"], line["exact"], line["to_firing"]) == ("mismatch", True, 4.0)


def test_what_comes_after_the_campaign_meddled_does_not_count():
    late = incident("rg_1.0", first=150.0, firing=151.0)

    line = judge(a_run(), seen(late), STRUCK, meddled_s=149.0)

    assert (line["detected"], line["gave_up_after"]) == (False, 49.0)


def test_where_nobody_is_to_blame_only_what_accuses_nobody_is_exact():
    run, away = a_run("lighthouse"), incident(kind="lighthouse_away")

    assert judge(run, seen(away), STRUCK)["exact"]
    assert not judge(run, [], STRUCK)["exact"]
    assert not judge(run, seen(incident(kind="deadlock")), STRUCK)["exact"]
    assert not judge(run, seen(away, incident("rg_1.0", kind="dead")), STRUCK)["exact"]


def test_an_eviction_of_another_group_is_on_record():
    line = judge(a_run(), seen(incident("rg_0.0", evict_asked_s=103.0)), STRUCK)

    assert line["evicted_wrongly"] == ["rg_0"]
