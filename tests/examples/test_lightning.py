"""examples/lightning: Lightning's Trainer, attached by a variable.

LIGHTKEEPER_LIGHTNING_PYTHON=/path/to/python pytest -m integration <this file>, the interpreter of
an environment that has lightning, lightkeeper and the same torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.hanging import RANKS, Session, by_torchrun, hung_and_healed, torchrun
from tests.examples.scripts import Example, same_weights, text_name, texts

PYTHON = os.environ.get("LIGHTKEEPER_LIGHTNING_PYTHON", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON, reason="LIGHTKEEPER_LIGHTNING_PYTHON names no interpreter"),
]

LIGHTNING = Example("lightning")
FILES, BATCH, EPOCHS = 64, 4, 3
BATCHES = FILES // (BATCH * RANKS)
HUNG_STEP = 5
HUNG_FILE = RANKS * BATCH * HUNG_STEP + 1
"""Rank 1's first of that step: of an unshuffled sampler it gets every second file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("lightning")
    texts(made / "texts", FILES)
    texts(made / "validate", 16)
    for name in ("torchrun", "plain"):
        (made / name).mkdir()  # for checkpoints: Lightning counts versions where there are some
    return made


def arguments(folder: Path, name: str) -> list[str]:
    return [
        "--data", str(folder / "texts"), "--validate", str(folder / "validate"),
        "--save", str(folder / name / "model.pt"), "--epochs", str(EPOCHS),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def session(folder) -> Iterator[Session]:
    file = folder / "texts" / text_name(HUNG_FILE)
    given = arguments(folder, "torchrun")
    command = by_torchrun(LIGHTNING.script, given, PYTHON)
    with hung_and_healed(folder, command, file) as seen:
        yield seen


def test_the_monitor_names_the_rank_whose_file_does_not_come(session) -> None:
    assert session.incident["kind"] == "not_entered"
    assert (session.incident["culprits"], session.incident["victims"]) == (["job.1"], ["job.0"])


def test_the_culprit_fetches_data_and_the_victim_goes_back(session) -> None:
    assert [state["step"]["phase"] for state in session.hung] == ["backward", "data"]
    assert [state["step"]["commits"] for state in session.hung] == [HUNG_STEP] * RANKS


def test_steps_are_the_trainers_and_their_seconds_are_told_by_phase(session) -> None:
    for state, rows in zip(session.after, session.steps, strict=True):
        step = state["step"]
        assert step["source"] == "lightning"
        assert step["commits"] == EPOCHS * BATCHES
        assert {"data", "forward", "backward", "optimizer", "evaluation"} <= step["seconds"].keys()
        assert [row[1] for row in rows] == list(range(EPOCHS * BATCHES))
        assert step["loss"] is not None
    assert all("checkpoint" in state["step"]["seconds"] for state in session.after)


def test_the_record_has_ddps_all_reduces(session) -> None:
    called = [
        [entry["profiling_name"] for entry in record["torch"]["entries"]].count("gloo:all_reduce")
        for record in session.records
    ]
    assert called[1] >= HUNG_STEP
    assert called[0] == called[1] + 1


def test_the_job_goes_on_to_its_end_and_says_so(session) -> None:
    assert session.status == 0
    over = "Exited with code 0, after it had announced that its work was over"
    assert [ended.startswith(over) for ended in session.ended] == [True] * RANKS, session.ended


def test_what_is_printed_and_learned_is_the_same_to_the_last_bit(session, folder) -> None:
    given = arguments(folder, "plain")
    assert torchrun(folder, PYTHON, LIGHTNING.script, given, name="plain").wait(120) == 0
    said = [
        [line for line in (folder / f"{name}.out").read_text().splitlines() if "val_loss" in line]
        for name in ("torchrun", "plain")
    ]
    assert said[0] == said[1] != []
    assert same_weights(folder / "torchrun" / "model.pt", folder / "plain" / "model.pt")
