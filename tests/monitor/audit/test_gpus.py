"""Whose word counts for the number of GPUs: the operator's, else the ranks' own, else nobody's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.audit.account import account
from monitor.audit.case import Terms
from monitor.audit.facts import FleetFacts, facts_from_json, facts_of_groups, facts_to_json
from monitor.audit.totals import totals_to_json
from monitor.names import GroupName
from monitor.snapshot import LighthouseAway, Observation, Snapshot
from tests.monitor.audit.scene import FACTS, case
from tests.monitor.shell.fakes import FakeRank, identity

TOLD = replace(FACTS, gpus_per_rank=2.0)


def seen(*gpus: int | None, dead: int = 0) -> FleetFacts:
    """The fleet of these ranks, one a group; the last `dead` of the others are dead."""
    observations = []
    for number, count in enumerate(gpus):
        who = replace(identity(f"rg_{number}", 0, world_size=1), accelerators=count)
        rank = FakeRank(who, alive=number < len(gpus) - dead)
        observations.append(Observation(rank.identity, rank.url, rank.report(), 0.01))
    snapshot = Snapshot(100.0, 1, 0.0, tuple(observations), LighthouseAway("no"))
    return facts_of_groups(snapshot, {GroupName("rg_0")})


@pytest.mark.parametrize(
    ("gpus", "dead", "expected"),
    [
        pytest.param((1, 1, 1), 0, 1.0, id="all alike"),
        pytest.param((2, 2, None), 0, None, id="one does not tell"),
        pytest.param((2, 2, 4), 0, None, id="not alike"),
        pytest.param((2, 2, 4), 1, 2.0, id="the dead wait for nobody"),
        pytest.param((0, 0), 0, None, id="CPUs only"),
        pytest.param((None, None), 0, None, id="nobody tells"),
    ],
)
def test_ranks_are_believed_when_all_say_the_same(gpus, dead, expected) -> None:
    assert seen(*gpus, dead=dead).gpus_per_rank == expected


def test_the_ranks_own_word_weighs_the_account_and_the_option_stands_above_it() -> None:
    plain, told = account(case()), account(case(facts=TOLD))
    assert (plain.unit, told.unit) == ("rank-seconds", "GPU-seconds")
    assert plain.lost.low is not None
    assert told.lost.low == 2 * plain.lost.low
    over = account(case(facts=TOLD, terms=Terms(gpus_per_rank=8.0)))
    assert over.lost.low == 8 * plain.lost.low


def test_totals_are_in_one_unit_and_count_ranks_where_one_incident_knows_no_better() -> None:
    plain, told = case(), case(facts=TOLD)
    both = totals_to_json([plain, told], None, 1.0)
    assert both["unit"] == "rank-seconds"
    assert both["lost"]["low"] == 2 * totals_to_json([plain], None, 1.0)["lost"]["low"]
    assert totals_to_json([told, case(facts=None)], None, 1.0)["unit"] == "GPU-seconds"
    assert totals_to_json([], None, 1.0)["unit"] == "rank-seconds"


def test_it_is_remembered_and_a_damaged_number_is_none() -> None:
    assert facts_from_json(facts_to_json(TOLD)) == TOLD
    for wrong in (-1, 0, 1e9, "nan"):
        found = facts_from_json({**facts_to_json(TOLD), "gpus_per_rank": wrong})
        assert found is not None
        assert found.gpus_per_rank is None
