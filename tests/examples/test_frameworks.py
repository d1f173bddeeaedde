"""examples/ray_train, deepspeed, megatron_core: each where an interpreter that has it is named.

LIGHTKEEPER_RAY_PYTHON=/path/to/python pytest -m integration <this file>; and so for
LIGHTKEEPER_DEEPSPEED_PYTHON and LIGHTKEEPER_MEGATRON_PYTHON: environments that have lightkeeper
and the same torch beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.examples.hanging import Session, by_torchrun, hung_and_healed, started
from tests.examples.scripts import Example, text_name, texts
from tests.incidents import fired
from tests.monitor.process import Monitor
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FILES = 32
RANKS = 2
NAMES = ["job.0", "job.1"]
RAY_DRIVER = str(Path(__file__).with_name("ray_driver.py"))
RAY_REPLICAS = str(Path(__file__).with_name("ray_replicas.py"))


def python_of(framework: str) -> str:
    name = f"LIGHTKEEPER_{framework}_PYTHON"
    return os.environ.get(name, "") or pytest.skip(f"{name} names no interpreter")


def session_of(folder: Path, command: list[str], hung: int, **environ: str) -> Session:
    file = folder / "texts" / text_name(hung)
    with hung_and_healed(folder, command, file, **environ) as seen:
        return seen


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_that_hangs_under_zero_is_named(stage, tmp_path) -> None:
    python = python_of("DEEPSPEED")
    data = texts(tmp_path / "texts", FILES)
    arguments = ["--data", str(data), "--stage", str(stage)]
    command = by_torchrun(Example("deepspeed").script, arguments, python)
    seen = session_of(tmp_path, command, hung=11, DS_ACCELERATOR="cpu")
    assert (seen.names, seen.accused, seen.status) == (NAMES, [["job.1"]], 0)
    assert [state["step"]["commits"] for state in seen.after] == [FILES // RANKS] * RANKS


def test_a_rank_that_hangs_beside_its_tensor_group_is_named(tmp_path) -> None:
    python = python_of("MEGATRON")
    arguments = ["--data", str(texts(tmp_path / "texts", FILES))]
    command = by_torchrun(Example("megatron_core").script, arguments, python)
    seen = session_of(tmp_path, command, hung=5)
    assert (seen.names, seen.accused, seen.status) == (NAMES, [["job.0"]], 0)
    assert [state["step"]["commits"] for state in seen.after] == [FILES] * RANKS


def test_a_worker_of_ray_train_that_hangs_is_named(tmp_path) -> None:
    python = python_of("RAY")
    data = texts(tmp_path / "texts", FILES)
    script = [str(Example("ray_train").script), "--data", str(data), "--storage", str(tmp_path)]
    command = [python, "-m", "lightkeeper", "run", "--", python, RAY_DRIVER, *script]
    seen = session_of(tmp_path, command, hung=11)
    assert (seen.names, seen.accused, seen.status) == (NAMES, [["job.1"]], 0)


def test_a_replica_group_that_ray_train_restarts_is_the_same_group(tmp_path) -> None:
    """Ray's own example of TorchFT: one worker is killed, and Ray starts that group alone again."""
    python = python_of("RAY")
    monitor = Monitor("--store", str(tmp_path / "monitor.db"), "--observe", port=free_port())
    job = None
    try:
        monitor.ready()
        command = [python, RAY_DRIVER, RAY_REPLICAS, str(tmp_path)]
        job = started(
            tmp_path, command, name="ray",
            LIGHTKEEPER_ATTACH="1", LIGHTKEEPER_MONITOR=monitor.url,
        )  # fmt: skip
        groups = ["train_ddp_0.0", "train_ddp_1.0"]
        before = wait_for(lambda: training(monitor, groups), within_s=400, what="both train")
        os.kill(before[groups[1]]["pid"], 9)
        after = wait_for(
            lambda: (now := training(monitor, groups)) and now[groups[1]]["pid"] !=
            before[groups[1]]["pid"] and now, within_s=400, what="the group is back",
        )  # fmt: skip
        assert after[groups[0]]["pid"] == before[groups[0]]["pid"]
        incidents = fired(monitor.get("/v1/incidents")["incidents"])
        assert {name for item in incidents for name in item["culprits"]} <= {groups[1]}
    finally:
        if job is not None:
            job.terminate()
            job.wait(60)
        monitor.end()


def training(monitor: Monitor, names: list[str]) -> dict[str, Any] | None:
    """The rows of these ranks, if they are all and commit."""
    rows = {row["rank"]: row for row in monitor.get("/v1/ranks")["ranks"]}
    healthy = all(row["health"] == "healthy" and row["step"] for row in rows.values())
    return rows if sorted(rows) == names and healthy else None
