"""Each role of a fleet is killed once: commits go on or resume, and no committed step is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torchft")

from experiments.killing import measure
from experiments.killing.forked import ForkedFleet
from experiments.killing.runner import Bench, group_hit
from tests.deep import only_explored

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WITHIN_S = 60.0
"""Everything is as before, on a busy machine; seen: evidence/kill-each.md."""
PAUSE_S = 20.0
"""The other group commits again, or all do where no group is hit: 5 s until a dead group's last
heartbeat is too old, and as much again."""


explored = [
    pytest.param(name, marks=only_explored)
    for name in ("lighthouse", "rank rg_1.1", "torchrun rg_1", "witnesses")
]
"""In `make test`: a Lighthouse in tests/gate/test_gate_process.py, a group by its rank here."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    fleet = ForkedFleet.made(tmp_path_factory.mktemp("killing") / "fleet", gate=True)
    fleet.trainer_options = (*fleet.trainer_options, "--step-time", "0.4")
    bench = Bench(fleet, calm_s=3.0, look_s=0.5)
    try:
        fleet.start()
        bench.until_whole(120)
        yield bench
    finally:
        bench.close()


def test_every_process_of_the_fleet_has_a_name(bench: Bench) -> None:
    bench.until_whole(60)
    assert bench.roles.missing() == []
    assert bench.roles.others() == {}


@pytest.mark.parametrize("name", ["gate", "monitor", "rank rg_0.0", "sidecar rg_0.1", *explored])
def test_training_goes_on_and_the_killed_one_comes_back(bench: Bench, name: str) -> None:
    bench.until_whole(60)
    hit = group_hit(name)
    row = bench.kill(name, WITHIN_S)
    print(row)
    assert row["problem"] is None, row
    assert row["back_s"] is not None
    assert row["pause_s"] <= PAUSE_S
    assert row["next_commit_s"] is not None
    assert row["others_left"] == []
    assert (row["evicted"], _fired(row)) == ([], [])
    if hit is None:
        # the witnesses are a child of one of the host's WorkerServers, whichever came first
        along = {"witnesses"} if name.startswith("sidecar") else set()
        assert set(row["also_replaced"]) <= along
    steps = bench.steps.read()
    assert measure.steps_lost(steps) == []
    assert measure.unequal(steps) == []
    assert measure.compared(steps) > 0


def _fired(row: dict[str, list[str]]) -> list[str]:
    """Whom an incident that fired accused, though its group was not hit."""
    return [accusation for accusation in row["accused_wrongly"] if " firing" in accusation]
