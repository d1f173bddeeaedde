"""examples/spawn, fsdp2, groups3d: ranks and groups of many makes, attached without a line."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.deep import only_explored
from tests.examples.hanging import Forked, Session, hung_and_healed
from tests.examples.scripts import Example, text_name, texts
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FILES = 32


def session_of(folder: Path, command: list[str], hung: int, **how: Any) -> Session:
    """All that was seen of the job while this file of its data did not come at first."""
    with hung_and_healed(folder, command, folder / "texts" / text_name(hung), **how) as seen:
        return seen


def forked(folder: Path, name: str, hung: int, *options: str) -> Session:
    """That of four ranks of an example, as under torchrun."""
    script, data = str(Example(name).script), str(texts(folder / "texts", FILES))
    start = partial(Forked.started, ranks=4)
    return session_of(folder, [script, "--data", data, *options], hung, start=start)


def assert_named_alone(seen: Session, culprit: int, ranks: int, steps: int) -> None:
    """The one rank and nobody else in the whole run; the job ends well, every step counted."""
    names = [f"job.{rank}" for rank in range(ranks)]
    assert seen.names == names
    assert seen.accused == [[names[culprit]]]
    assert seen.incident["victims"] == [name for name in names if name != names[culprit]]
    assert seen.status == 0
    assert [state["step"]["commits"] for state in seen.after] == [steps] * ranks
    assert seen.ended == ["Exited with code 0."] * ranks


@only_explored  # make test: tests/worker_server/test_odd_starts.py and test_zero_code.py
def test_ranks_that_a_script_spawns_attach_when_they_meet(tmp_path) -> None:
    """Under `lightkeeper run`, although the rank is only an argument of `init_process_group`."""
    data, meet = texts(tmp_path / "texts", FILES), f"tcp://127.0.0.1:{free_port()}"
    script = [sys.executable, str(Example("spawn").script), "--data", str(data), "--meet", meet]
    run = [sys.executable, "-m", "lightkeeper", "run", "--", *script]
    seen = session_of(tmp_path, run, hung=11)
    assert_named_alone(seen, culprit=1, ranks=2, steps=FILES // 2)


@only_explored  # make test: the groups below; tests/worker_server/test_records.py sees FSDP2
def test_a_rank_that_hangs_in_a_mesh_of_replicas_and_shards_is_named(tmp_path) -> None:
    seen = forked(tmp_path, "fsdp2", 22, "--replicas", "2")
    assert_named_alone(seen, culprit=2, ranks=4, steps=FILES // 4)


def test_a_rank_that_hangs_before_tensor_and_pipeline_groups_is_named(tmp_path) -> None:
    """Its tensor group waits in a broadcast, the next stage for a receive."""
    seen = forked(tmp_path, "groups3d", 10)
    assert_named_alone(seen, culprit=0, ranks=4, steps=FILES)
