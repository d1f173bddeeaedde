"""examples/accelerate: Accelerate's own loop, attached by a variable or by the README's two lines.

LIGHTKEEPER_ACCELERATE_PYTHON=/path/to/python pytest -m integration <this file>, the interpreter of
an environment that has accelerate, lightkeeper and the same torch.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.hanging import (
    RANKS,
    Session,
    asked,
    by_torchrun,
    hung_and_healed,
    ours,
    torchrun,
)
from tests.examples.scripts import Example, same_weights, text_name, texts
from tests.worker_server.ranks import Rank

PYTHON = os.environ.get("LIGHTKEEPER_ACCELERATE_PYTHON", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON, reason="LIGHTKEEPER_ACCELERATE_PYTHON names no interpreter"),
]

ACCELERATE = Example("accelerate")
FILES, BATCH, EPOCHS = 96, 4, 3
BATCHES = FILES // (BATCH * RANKS)
"""Of a rank in an epoch; two of them are one step of the optimizer."""
HUNG_BATCH = 10
HUNG_FILE = BATCH * (RANKS * HUNG_BATCH + 1)
"""Rank 1's first of that batch: whole batches are dealt out in turn."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("accelerate")
    texts(made / "texts", FILES)
    return made


def arguments(folder: Path, name: str) -> list[str]:
    return ["--data", str(folder / "texts"), "--save", str(folder / f"{name}.pt")]


@pytest.fixture(scope="module")
def session(folder) -> Iterator[Session]:
    file = folder / "texts" / text_name(HUNG_FILE)
    given = arguments(folder, "torchrun")
    command = by_torchrun(ACCELERATE.script, given, PYTHON)
    with hung_and_healed(folder, command, file) as seen:
        yield seen


def test_the_monitor_names_the_rank_whose_file_does_not_come(session) -> None:
    assert session.incident["kind"] == "not_entered"
    assert (session.incident["culprits"], session.incident["victims"]) == (["job.1"], ["job.0"])


def test_steps_are_the_optimizers_and_not_the_batches_that_it_accumulates(session) -> None:
    before = (HUNG_BATCH - 1) // 2  # Accelerate fetches a batch ahead
    assert [state["step"]["commits"] for state in session.hung] == [before] * RANKS
    assert [state["step"]["commits"] for state in session.after] == [EPOCHS * BATCHES // 2] * RANKS
    assert {state["step"]["source"] for state in session.after} == {"optimizer"}


def test_the_victim_stands_in_ddps_all_reduce(session) -> None:
    victim, culprit = (record["torch"]["entries"] for record in session.active)
    assert [entry["profiling_name"] for entry in victim] == ["gloo:all_reduce"]
    assert culprit == []


def test_the_record_has_accelerates_own_collectives(session) -> None:
    for record in session.last_records:
        gathers = [entry for entry in record["ring"] if "all_gather" in entry["op"]]
        assert len(gathers) == EPOCHS
        assert all("exit_age_s" in entry for entry in gathers), gathers
        assert {entry["site"].partition(":")[0] for entry in gathers} == {"utils/operations.py"}


def test_the_job_goes_on_to_its_end(session) -> None:
    assert session.status == 0
    assert session.ended == ["Exited with code 0."] * RANKS


@pytest.mark.parametrize("way", ["torchrun", "two_lines"])
def test_what_is_printed_and_learned_is_the_same_to_the_last_bit(way, session, folder) -> None:
    scripts = {"plain": ACCELERATE.script}
    if way == "two_lines":
        scripts[way] = ACCELERATE.patched(folder)
    for name, script in scripts.items():
        given = arguments(folder, name)
        assert torchrun(folder, PYTHON, script, given, name=name).wait(120) == 0
    assert (folder / f"{way}.out").read_text() == (folder / "plain.out").read_text() != ""
    assert same_weights(folder / f"{way}.pt", folder / "plain.pt")


def test_one_process_of_accelerate_launch_attaches_by_the_command(folder, session) -> None:
    run_dir = folder / "launched"
    given = arguments(folder, "launched")
    subprocess.run(
        [PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1",
         "-m", "lightkeeper.worker_server", str(ACCELERATE.script), *given],
        env=ours(run_dir), cwd=folder, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    [page] = run_dir.glob("*.page")
    endpoint = json.loads(page.with_suffix(".json").read_text())
    rank = Rank(endpoint["pid"], run_dir)
    assert asked(rank, "/v1/state")["step"]["commits"] == EPOCHS * FILES // (BATCH * 2)
    rank.end()


def test_the_readmes_diff_is_two_lines() -> None:
    assert ACCELERATE.changed_lines() == 2
