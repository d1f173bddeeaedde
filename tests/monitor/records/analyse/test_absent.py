"""A rank that does not come, and those who only wait for it."""

from __future__ import annotations

import pytest

from monitor.model.verdict import Confidence
from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from monitor.records.job import Backend, GroupStatus
from tests.changed import replace
from tests.monitor.records.analyse.jobs import WORLD, Call, job, many, recv, send, whole

TP = {"tp0": (0, 1), "tp1": (2, 3)}


def test_one_finding_names_the_rank_that_did_not_come_even_when_it_is_rank_zero() -> None:
    found = analyse(job({0: many(3), **{r: [*many(3), Call().open()] for r in (1, 2, 3)}}))
    (one,) = found.findings
    assert (one.kind, one.culprits, one.victims) == (Fault.NOT_ENTERED, (0,), (1, 2, 3))
    assert (one.group, one.sequence, one.op) == (0, 4, "all_reduce")
    assert one.reason == (
        "rank 0 has not entered all_reduce 4 of world, nor anything else: ranks 1, 2 and 3 wait "
        "there. Its last call was all_reduce 3 of world."
    )


def test_ranks_that_wait_for_a_waiting_rank_are_victims() -> None:
    tp, dp = Call("tp0"), Call("dp")
    found = analyse(
        job(
            {
                0: [tp, dp],
                1: [tp, dp, tp.open()],
                2: [Call("tp1"), dp, Call("tp1"), dp.open()],
                3: [Call("tp1"), dp, Call("tp1"), dp.open()],
            },
            {**TP, "dp": (1, 2, 3)},
        )
    )
    (one,) = found.findings
    assert (one.culprits, one.victims) == ((0,), (1, 2, 3))
    waits = {wait.rank: wait.waits_for for wait in found.waits}
    assert waits == {1: (0,), 2: (1,), 3: (1,)}


def test_a_cpu_that_launched_less_in_several_groups_is_not_enqueuing() -> None:
    ahead = [Call(), Call().open(), Call("more").open(), Call().open()]
    found = analyse(job({0: ahead, 1: ahead, 2: [Call()]}, {"more": (0, 1, 2)}))
    (one,) = found.findings
    assert (one.kind, one.culprits) == (Fault.NOT_ENQUEUING, (2,))


def test_counters_speak_for_a_rank_without_entries() -> None:
    at = {rank: {WORLD: GroupStatus(2, -1, 1)} for rank in (0, 1, 2)} | {
        3: {WORLD: GroupStatus(1, -1, 1)}
    }
    calls = {r: [Call(), Call().open()] for r in (0, 1, 2)} | {3: [Call()]}
    (one,) = analyse(job(calls, only_active=True, status=at)).findings
    assert (one.kind, one.culprits) == (Fault.NOT_ENQUEUING, (3,))


def test_counters_of_a_group_with_transfers_are_not_believed() -> None:
    at = {rank: {WORLD: GroupStatus(2, -1, 1)} for rank in (0, 1, 2)} | {
        3: {WORLD: GroupStatus(9, -1, 9)}
    }
    calls = {0: [Call(), Call().open()], 1: [Call(), Call().open()], 3: [Call()]}
    calls[2] = [Call(), Call().open(), send(3)]
    (one,) = analyse(job(calls, only_active=True, status=at)).findings
    assert one.culprits == (3,)


def test_two_ranks_that_the_same_collective_misses_are_one_finding() -> None:
    calls = {r: [Call(), Call().open()] for r in range(6)} | {6: [Call()], 7: [Call()]}
    (one,) = analyse(job(calls)).findings
    assert one.culprits == (6, 7)


def test_two_ranks_that_stopped_in_different_places_are_both_named() -> None:
    groups = {"a": (0, 1, 2), "b": (3, 4, 5)}
    calls = {0: [Call("a").open()], 1: [Call("a").open()], 2: [],
             3: [Call("b").open()], 4: [Call("b").open()], 5: []}  # fmt: skip
    assert analyse(job(calls, groups)).culprits == (2, 5)


def test_a_recv_that_nobody_answers_names_the_peer() -> None:
    (one,) = analyse(job({0: [Call(), recv(1)], 1: [Call()], 2: [Call()]})).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.POINT_TO_POINT, (1,), (0,))


def test_a_chain_of_transfers_leads_to_its_end() -> None:
    found = analyse(job({0: [recv(1)], 1: [recv(2)], 2: [recv(3)], 3: []}))
    assert found.culprits == (3,)
    assert found.findings[0].victims == (0, 1, 2)


def test_sends_that_wait_for_each_other_accuse_nobody() -> None:
    (one,) = analyse(job({0: [send(1)], 1: [send(0)], 2: []})).findings
    assert (one.kind, one.confidence) == (Fault.POINT_TO_POINT, Confidence.UNSURE)
    assert (one.culprits, one.between) == ((), ((0,), (1,)))


def test_a_send_that_is_merely_early_does_not_hide_the_culprit() -> None:
    tp = Call("tp0")
    calls = {0: [send(2), tp.open()], 1: [], 2: [recv(0, "pp")], 3: []}
    found = analyse(job(calls, {"tp0": (0, 1), "pp": (0, 2)}))
    assert 1 in found.culprits
    assert not {0, 2} & set(found.culprits)


def test_parts_of_batches_that_are_over_hold_up_nobody() -> None:
    # NCCL leaves a part "scheduled" for ever; the whole of a batch that is over was left out
    groups = {"pp0": (0, 2), "pp1": (1, 3)}
    called = {0: [send(2, "pp0"), send(2, "pp0"), Call().open()], 1: [send(3, "pp1")]}
    called |= {2: [recv(0, "pp0"), recv(0, "pp0"), Call().open()]}
    called |= {3: [recv(1, "pp1"), Call().open(), send(1, "pp1"), whole("pp1")]}
    one = job(called, groups, only_active=True)
    described = [replace(g, desc="" if g.name == WORLD else "PIPELINE") for g in one.groups]
    assert analyse(replace(one, groups=tuple(described))).culprits == (1,)


def test_hidden_transfers_of_gloo_show_in_its_counters() -> None:
    at = {rank: {WORLD: GroupStatus(9, -1, 8)} for rank in (0, 1)}
    calls = {0: [Call()], 1: [Call()], 2: [Call(), Call().open()], 3: [Call(), Call().open()]}
    (one,) = analyse(job(calls, backend=Backend.GLOO, status=at)).findings
    assert (one.kind, one.culprits) == (Fault.POINT_TO_POINT, (0, 1))


@pytest.mark.parametrize("size", [4, 5, 8])
def test_a_call_that_only_one_makes_at_the_end_accuses_nobody_without_a_past(size: int) -> None:
    calls = {r: many(3) for r in range(size)} | {1: [*many(3), Call().open()]}
    (one,) = analyse(job(calls)).findings
    assert (one.culprits, one.confidence) == ((), Confidence.UNSURE)
    others = tuple(r for r in range(size) if r != 1)
    assert one.between == tuple(sorted(((1,), others)))


def _steps(count: int) -> list[Call]:
    return [Call(site="a.py:1 step"), Call(size=4, site="a.py:2 step")] * count


def test_a_call_too_many_at_the_end_is_found_by_the_past() -> None:
    calls = {r: _steps(4) for r in range(4)}
    calls[2] = [*_steps(4), Call(size=4, site="a.py:2 step").open()]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits) == (Fault.EXTRA, (2,))


def test_most_of_a_group_may_be_missing_from_a_call_that_is_usual() -> None:
    calls = {r: _steps(4) for r in range(4)}
    calls[2] = [*_steps(4), Call(site="a.py:1 step").open()]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits) == (Fault.NOT_ENTERED, (0, 1, 3))
