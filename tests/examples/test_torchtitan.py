"""examples/torchtitan: torchtitan's own trainers on CPU, beside a monitor.

Needs an interpreter with torchtitan (examples/torchtitan/README.md says how to make one):

    LIGHTKEEPER_TORCHTITAN_PYTHON=/path/to/venv/bin/python pytest tests/examples/test_torchtitan.py
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.examples.titan import PYTHON, Row, bench, state_of
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PYTHON, reason="LIGHTKEEPER_TORCHTITAN_PYTHON names no interpreter with torchtitan"
    ),
]
LONG = ("--training.steps", "5000")


@pytest.fixture
def here(tmp_path):
    with bench(tmp_path) as made:
        yield made


def equal_prints(states: list[Row], after: int) -> bool:
    """Whether the groups' weights were hashed at the same later step, and are the same."""
    rows = [{tuple(row) for row in state.get("prints", {"rows": ()})["rows"]} for state in states]
    common = {step for step, *_ in rows[0]}.intersection(*({s for s, *_ in r} for r in rows[1:]))
    late = {step for step in common if step > after}
    alike = set.intersection(*rows)
    assert {step for step, *_ in alike} >= late, rows
    return bool(late)


def test_two_ranks_of_fsdp_are_watched_and_the_one_that_stops_is_named(here):
    here.plain(2, *LONG)
    rows = here.training(2, steps=8)
    state = here.state("job.1")
    print("plain 2 ranks:", rows, state)
    assert {row["rank"] for row in rows} == {"job.0", "job.1"}
    assert state["source"] == "torchtitan"
    assert 0 < state["loss"] < 8
    assert state["tokens"] >= state["commits"] * 8 * 64
    assert {"data", "forward_backward", "optimizer"} <= set(state["seconds"])
    assert here.fired() == {}
    here.stop("job.1")
    assert here.named()["culprits"] == ["job.1"]


def test_a_replica_group_of_two_ranks_tells_torchft_steps_and_ends_well(here):
    here.lighthouse()
    group = here.group(0, 1, 2, "--training.steps", "24")
    rows = here.training(2, steps=8)
    state = here.state("torchtitan_ft_0.1")
    print("1 group x 2 ranks:", rows, state)
    assert state["source"] == "torchtitan"  # of the phases; the steps are TorchFT's
    assert state["attempt"] == state["step"] + 1  # the optimizers' step at the start is none
    assert (state["participants"], state["quorum_id"]) == (1, 1)
    assert state["replica_id"].startswith("torchtitan_ft_0:")
    assert 0 < state["loss"] < 8
    assert group.wait(240) == 0
    assert here.fired() == {}


def test_a_group_that_comes_late_or_again_heals_bit_by_bit_and_a_stopped_one_is_named(here):
    here.lighthouse()
    here.group(0, 2, 1, *LONG)
    here.training(1, steps=6)
    here.group(1, 2, 1, *LONG)

    def same_weights(after: int) -> bool:
        rows = here.ranks()
        if len(rows) < 2 or any(row["participants"] != 2 for row in rows):
            return False
        return equal_prints([state_of(row) for row in rows], after)

    wait_for(lambda: same_weights(6), within_s=240, what=f"it heals; {here.logs()}")
    print("2 groups x 1 rank:", here.training(2, steps=3))
    assert here.fired() == {}
    step = here.state("torchtitan_ft_0.0")["step"]
    os.kill(here.pid("torchtitan_ft_1.0"), signal.SIGKILL)
    killed = here.named()
    assert (killed["kind"], killed["culprits"]) == ("dead", ["torchtitan_ft_1.0"])
    wait_for(
        lambda: same_weights(step + 1), within_s=240, what=f"group.sh brings it back; {here.logs()}"
    )
    print("after a restart:", here.training(2, steps=3))
    before = set(here.fired())
    here.stop("torchtitan_ft_1.0")
    assert here.named(before)["culprits"] == ["torchtitan_ft_1.0"]
