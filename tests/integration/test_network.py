"""A host is lost, in a lab of networks: how long the others stand, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("torchft")

from experiments.netlab.cases import CASES
from experiments.netlab.lab import why_not
from experiments.netlab.runner import run
from tests.deep import only_explored

SURVIVORS_STAND_S: Final = 20.0
"""8.7 s on a quiet machine; TorchFT alone takes 60.4."""
TOLD_S: Final = 15.0
GATE_BACK_S: Final = CASES["gate-host-lost"].repair_s
"""2.3 s later all commit again."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_survivors_of_a_lost_host_commit_again_and_its_rank_alone_is_named(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    record = run(CASES["host-lost"], 0, tmp_path / "lab", alone=False, settle_s=15.0)
    assert record["pauses"].keys() == {"0.0", "2.0"}
    for rank, row in record["pauses"].items():
        assert row["over"] is not None, f"{rank} still stands"
        assert row["pause"] < SURVIVORS_STAND_S, rank
    assert record["named"].keys() == {"1.0"}, record["incidents"]
    assert record["named"]["1.0"] < TOLD_S
    assert {group for row in record["incidents"] for group in row["evicted"]} <= {"1"}


@only_explored  # make test: the release by itself, tests/worker_server/test_exchange.py
def test_survivors_of_a_dead_group_do_not_wait_for_it_while_the_lighthouse_is_away(
    tmp_path: Path,
) -> None:
    """They ask by the time that it is back; without their release they wait for 60 s."""
    if why := why_not():
        pytest.skip(why)
    case = CASES["group-killed-no-lighthouse"]
    record = run(case, 0, tmp_path / "lab", alone=False, settle_s=5.0)
    assert record["pauses"].keys() == {"0.0", "2.0"}
    for rank, row in record["pauses"].items():
        assert row["over"] is not None, f"{rank} still stands"
        assert row["pause"] < case.repair_s + SURVIVORS_STAND_S, rank


@only_explored  # make test: a gate that is killed, tests/experiments/test_killing.py; shut
# connections, tests/worker_server/test_dead_connections.py
def test_the_loss_of_the_gates_host_ends_nobody_once_the_gate_is_elsewhere(tmp_path: Path) -> None:
    """Without the shut connections all groups end after 62 s, by their quorum timeout."""
    if why := why_not():
        pytest.skip(why)
    record = run(CASES["gate-host-lost"], 0, tmp_path / "lab", alone=False, settle_s=10.0)
    assert record["ended"] == []
    assert all(row["pause"] < GATE_BACK_S + 20.0 for row in record["pauses"].values())
    assert not record["named"], record["incidents"]
    assert "quorum_lost" in {row["kind"] for row in record["incidents"] if row["fired"]}
