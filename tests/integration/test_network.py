"""A host is lost, in a lab of networks: how long the others stand, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("torchft")

from experiments.netlab.cases import CASES
from experiments.netlab.lab import why_not
from experiments.netlab.runner import run

SURVIVORS_STAND_S: Final = 20.0
"""8.7 s on a quiet machine; TorchFT alone takes 60.4."""
TOLD_S: Final = 20.0
"""7.4 s while kernels wait for it; 15 s (`host_lost_s`) where survivors have closed connections."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_survivors_of_a_lost_host_commit_again_and_its_rank_alone_is_named(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    case = CASES["host-lost"]
    record = run(case, 0, tmp_path / "lab", alone=False, settle_s=5.0, forked=True)
    assert record["pauses"].keys() == {"0.0", "2.0"}
    for rank, row in record["pauses"].items():
        assert row["over"] is not None, f"{rank} still stands"
        assert row["pause"] < SURVIVORS_STAND_S, rank
    assert record["named"].keys() == {"1.0"}, record["incidents"]
    assert record["named"]["1.0"] < TOLD_S
    assert {group for row in record["incidents"] for group in row["evicted"]} <= {"1"}
