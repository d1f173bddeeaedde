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
from tests.monitor.process import TOKEN, Monitor
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FILES = 32
RANKS = 2
NAMES = ["job.0", "job.1"]
RAY_DRIVER = str(Path(__file__).with_name("ray_driver.py"))
RAY_REPLICAS = str(Path(__file__).with_name("ray_replicas.py"))
HUNG, KILLED = "train_ddp_0.0", "train_ddp_1.0"


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
    seen = session_of(tmp_path, command, hung=11, LIGHTKEEPER_LINGER_S="300")  # Ray ends slowly
    assert (seen.names, seen.accused, seen.status) == (NAMES, [["job.1"]], 0)


def test_ray_train_starts_one_replica_group_again_under_its_name(tmp_path) -> None:
    """Ray's own example of TorchFT: one worker is killed, then the other hangs and is evicted."""
    python, lighthouse = python_of("RAY"), str(free_port())
    monitor = Monitor(
        "--store", str(tmp_path / "monitor.db"), "--lighthouse", f"http://127.0.0.1:{lighthouse}",
        port=free_port(), LIGHTKEEPER_TOKEN=TOKEN,
    )  # fmt: skip
    job = None
    try:
        monitor.ready()
        job = started(
            tmp_path, [python, RAY_DRIVER, RAY_REPLICAS, str(tmp_path), lighthouse], name="ray",
            LIGHTKEEPER_ATTACH="1", LIGHTKEEPER_MONITOR=monitor.url, LIGHTKEEPER_TOKEN=TOKEN,
        )  # fmt: skip
        begun = wait_for(lambda: training(monitor), within_s=400, what="both train")
        os.kill(begun[KILLED]["pid"], 9)
        killed = wait_for(lambda: back(monitor, KILLED, begun), within_s=400, what="one is back")
        os.mkfifo(tmp_path / "hang0")
        evicted = wait_for(lambda: back(monitor, HUNG, killed), within_s=400, what="and the other")
        pids = [[rows[name]["pid"] for name in (HUNG, KILLED)] for rows in (begun, killed, evicted)]
        assert [pids[0][0], pids[1][1]] == [pids[1][0], pids[2][1]], (
            "Ray replaced the other one too"
        )
        incidents = wait_for(lambda: over(monitor), within_s=60, what="all is over")
        assert [item["culprits"] for item in incidents] == [[KILLED], [HUNG]]
        evictions = [item["milestones"]["evict_asked_s"] is not None for item in incidents]
        assert evictions == [False, True]
    finally:
        if job is not None:
            job.terminate()  # Ray ends what it started
            job.wait(60)
        monitor.end()


def training(monitor: Monitor) -> dict[str, Any] | None:
    """The rows of both ranks, if they commit and there are no others."""
    rows = {row["rank"]: row for row in monitor.get("/v1/ranks")["ranks"]}
    healthy = all(row["health"] == "healthy" and row["step"] for row in rows.values())
    return rows if sorted(rows) == [HUNG, KILLED] and healthy else None


def back(monitor: Monitor, name: str, before: dict[str, Any]) -> dict[str, Any] | None:
    """The rows of both ranks, once that rank is another process and both commit further steps."""
    rows = training(monitor)
    further = rows and all(rows[rank]["step"] > before[rank]["step"] for rank in rows)
    return rows if rows and further and rows[name]["pid"] != before[name]["pid"] else None


def over(monitor: Monitor) -> list[dict[str, Any]] | None:
    """Incidents that accused somebody, the first first, if they are over and the ranks are back."""
    incidents = [
        item for item in fired(monitor.get("/v1/incidents")["incidents"]) if item["culprits"]
    ]
    ended = all(
        item["state"] == "resolved" and item["milestones"]["rejoined_s"] for item in incidents
    )
    return sorted(incidents, key=lambda item: item["milestones"]["firing_s"]) if ended else None
