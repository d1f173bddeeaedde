"""Fingerprints of all ranks: who may vote, and what is compared with what."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.weights import PrintBook
from lightkeeper.monitor.model.names import GroupName, Host
from lightkeeper.worker_server.wire import Identity, Prints, StepState


def voice(group, rows, *, life="a", lineage=0, gone=False, participants=3, lane=1, index=0):
    prints = Prints(lane, lineage, tuple((s, v, 0) for s, v in rows)) if rows else None
    identity = Identity("job", GroupName(f"rg_{group}"), index, 2, Host("node"), 1, life)
    step = StepState(0, 0, 0, "other", 0.0, 0, participants=participants, prints=prints)
    return RankTrack(identity, 0.0, 0.0, step=step, died_s=0.0 if gone else None)


def dissents(*sweeps):
    """Steps and odd ones after these sweeps, a second apart."""
    book = PrintBook()
    for now_s, voices in enumerate(sweeps):
        book.push(float(now_s), voices)
    return [(dissent.step, dissent.odd) for dissent in book.dissents()]


EQUAL = [voice(n, [(10, 5)]) for n in range(3)]


def later(*values, step=20, **how):
    return [voice(n, [(10, 5), (step, value)], **how) for n, value in enumerate(values)]


MENDED = [voice(0, [(30, 9)]), voice(1, [(30, 9)], lineage=1), voice(2, [(30, 9)])]


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        pytest.param([EQUAL, later(7, 8, 7)], [(20, ("rg_1.0",))], id="the odd one of equals"),
        pytest.param(
            [[voice(n, [(20, value)]) for n, value in enumerate((7, 8, 7))]], [(20, ())],
            id="they were never seen to be equal",
        ),
        pytest.param(
            [EQUAL, later(7, 8, 7, participants=6)], [(20, ())],
            id="groups that this monitor does not know count as late",
        ),
        pytest.param(
            [EQUAL, [*later(7, 8), voice(2, [(20, 8)], lineage=1)]], [(20, ())],
            id="who healed since has no vote",
        ),
        pytest.param(
            [EQUAL, [*later(7, 8), voice(2, [(20, 8)], life="b")]], [(20, ())],
            id="nor has who started anew",
        ),
        pytest.param(
            [EQUAL, [*later(7, 7), voice(2, [(20, 8)], lineage=1)]], [(20, ("rg_2.0",))],
            id="who healed is the odd one against two that did not",
        ),
        pytest.param([EQUAL, later(7, 8, 7), MENDED], [], id="a heal mends the odd one"),
        pytest.param(
            [EQUAL, [voice(0, [(20, 7)]), voice(1, [(20, 8)], lane=2), voice(2, [(20, 7)])]], [],
            id="other shapes or shards are not compared",
        ),
        pytest.param(
            [EQUAL, [*later(8), *(voice(n, [(10, 5), (20, 7)], gone=True) for n in (1, 2))]], [],
            id="who ended bears no witness",
        ),
    ],
)  # fmt: skip
def test_who_is_outvoted_at_which_step(sweeps, expected):
    assert dissents(*sweeps) == expected


def test_a_value_that_is_late_can_turn_no_vote():
    five = [voice(n, [(10, 5)], participants=5) for n in range(5)]
    some = [voice(n, [(20, value)], participants=5) for n, value in enumerate((7, 8, 7))]
    rest = five[3:]
    assert dissents(five, [*some, *rest]) == [(20, ())]
    all_five = [*some, *(voice(n, [(20, 7)], participants=5) for n in (3, 4))]
    assert dissents(five, [*some, *rest], all_five) == [(20, ("rg_1.0",))]


def test_ranks_of_one_group_that_hold_the_same_vote_too():
    equal = [voice(g, [(10, 5)], index=i, participants=2) for g in range(2) for i in range(2)]
    odd = [
        voice(g, [(20, 8 if (g, i) == (1, 1) else 7)], index=i, participants=2)
        for g in range(2) for i in range(2)
    ]  # fmt: skip
    assert dissents(equal, odd) == [(20, ("rg_1.1",))]


def test_a_job_that_starts_anew_is_not_compared_with_the_one_before():
    # rg_0 is back at step 20 with another history; the others still say what they said
    again = voice(0, [(10, 1), (20, 2)], life="b")
    assert dissents(EQUAL, later(7, 7, 7), [again, *later(7, 7, 7)[1:]]) == []


def test_steps_done_again_from_a_checkpoint_are_compared_with_each_other_only():
    back = [voice(0, [(20, 3)], lineage=1), *later(7, 7, 7)[1:]]
    all_back = [voice(n, [(20, 3)], lineage=1) for n in range(3)]
    assert dissents(EQUAL, later(7, 7, 7), back, all_back) == []
    equal_again = [voice(n, [(20, 3), (30, 4)], lineage=1) for n in range(3)]
    odd_then = [voice(n, [(30, 4), (40, value)], lineage=1) for n, value in enumerate((5, 5, 6))]
    sweeps = EQUAL, later(7, 7, 7), back, all_back, equal_again, odd_then
    assert dissents(*sweeps) == [(40, ("rg_2.0",))]


def test_what_is_kept_is_bounded():
    book = PrintBook()
    for step in range(2000):
        book.push(float(step), [voice(n, [(step, step + n)]) for n in range(3)])
    [lane] = book._lanes.values()
    assert (len(lane.steps), len(lane.dissents)) == (32, 16)
    book.push(3000.0, [])
    assert book._lanes == {}
