import json
from pathlib import Path

import pytest

from experiments.band import judge, plot
from experiments.band.__main__ import COMMAND

EVIDENCE = Path(__file__).parents[2] / "evidence"
BAND = 0.15
"""Nats a byte, as evidence/README.md states it."""


def step(rank, number, loss=1.0, *, committed=True):
    return {"event": "step", "rank": rank, "step": number, "committed": committed, "loss": loss}


def weights(rank, number, sha256, piece=0):
    return {
        "event": "fingerprint", "rank": rank, "step": number, "piece": piece, "sha256": sha256,
    }  # fmt: skip


def test_the_loss_of_a_step_is_the_mean_over_groups_whatever_their_size():
    events = [
        step("rg_0.0", 1, 4.0),
        step("rg_0.1", 1, 4.0),
        step("rg_1.0", 1, 2.0),
        step("rg_1.0", 2, 9.0, committed=False),
        step("rg_0.0", 2, 1.0),
    ]

    assert judge.curve(events) == {1: 3.0, 2: 1.0}


def test_runs_are_compared_by_means_over_whole_windows():
    flat = dict.fromkeys(range(1, 31), 2.0)
    raised = {number: 2.0 + (number > 20) for number in range(1, 31)}

    difference = judge.apart(raised, flat)

    assert list(difference) == list(range(judge.WINDOW, 31))
    assert difference[20] == 0.0
    assert difference[30] == pytest.approx(10 / judge.WINDOW)


def test_a_run_in_which_every_step_counts_once_loses_nothing():
    events = [step("rg_0.0", 1), step("rg_0.0", 2), step("rg_1.0", 2), weights("rg_0.0", 2, "a")]

    assert judge.lost([*events, weights("rg_1.0", 2, "a")], last=2) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([step("rg_0.0", 1), step("rg_0.0", 3)], "step 2 is missing"),
        ([step("rg_0.0", 1), step("rg_0.0", 2, committed=False), step("rg_0.0", 3)],
         "step 2 is missing"),
        ([*(step("rg_0.0", n) for n in (1, 2, 2, 3))], "rg_0.0 committed step 2 twice"),
        ([*(step("rg_0.0", n) for n in (1, 2, 3)), weights("rg_0.0", 2, "a"),
          weights("rg_1.0", 2, "b")], "piece 0 has 2 sets of weights after step 2"),
    ],
)  # fmt: skip
def test_each_way_of_losing_a_step_is_seen(events, problem):
    assert judge.lost(events, last=3) == [problem]


def test_the_committed_run_keeps_the_stated_band_and_is_what_the_picture_shows():
    runs = [json.loads(line) for line in (EVIDENCE / "loss-band.jsonl").read_text().splitlines()]
    calm, harmed, _ = (dict(run["loss"]) for run in runs)

    assert [len(run["evictions"]) for run in runs] == [0, 6, 0]
    assert [run["lost"] for run in runs] == [[], [], []]
    assert max(map(abs, judge.apart(harmed, calm).values())) < BAND
    assert f"Stated band: {BAND} nats" in (EVIDENCE / "README.md").read_text()
    assert plot.draw(runs, COMMAND) == (EVIDENCE / "images" / "loss-band.svg").read_text()
