"""examples/ddp: a plain DDP script, attached by a variable or by the README's two lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.deep import only_explored
from tests.examples.hanging import RANKS, Forked, Session, asked, dead, hung_and_healed
from tests.examples.scripts import Example, same_weights, text_name, texts
from tests.waiting import wait_for
from tests.worker_server.ranks import Rank

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DDP = Example("ddp")
FILES, BATCH = 64, 4
STEPS = 3 * FILES // (BATCH * RANKS)
HUNG_STEP = 5
HUNG_FILE = RANKS * BATCH * HUNG_STEP + 1
"""Rank 1's first of that step: of an unshuffled sampler it gets every second file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("ddp")
    texts(made / "texts", FILES)
    return made


# -- ranks as of torchrun (see tests/lightkeeper), attached by a variable; one of them hangs ------


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    words = [str(DDP.script), "--data", str(folder / "texts")]
    words += ["--save", str(folder / "attached.pt")]
    file = folder / "texts" / text_name(HUNG_FILE)
    with hung_and_healed(folder, words, file, start=Forked.started) as seen:
        yield seen


def test_the_monitor_names_the_rank_whose_file_does_not_come(session) -> None:
    assert session.incident["kind"] == "not_entered"
    assert session.incident["culprits"] == ["job.1"]
    assert session.incident["victims"] == ["job.0"]
    assert "flight records" in session.incident["evidence"]["source"]


def test_both_ranks_have_made_the_steps_before_the_hang_and_no_more(session) -> None:
    steps = [state["step"] for state in session.hung]
    assert [step["commits"] for step in steps] == [HUNG_STEP] * RANKS
    assert {step["source"] for step in steps} == {"optimizer"}


def test_the_victim_stands_in_ddps_all_reduce_and_the_culprit_in_none(session) -> None:
    victim, culprit = (record["torch"]["entries"] for record in session.active)
    assert [entry["profiling_name"] for entry in victim] == ["gloo:all_reduce"]
    assert culprit == []
    assert session.active[0]["torch_only"] == [victim[0]["record_id"]]


def test_the_open_all_reduce_is_as_old_as_the_hang(session) -> None:
    stood_s = session.hung[0]["step"]["phase_age_s"]
    assert stood_s >= 5
    assert session.active[0]["torch_last_age_s"] == pytest.approx(stood_s, abs=2)


def test_the_stacks_show_the_victim_in_backward_and_the_culprit_at_its_file(session) -> None:
    victim, culprit = session.stacks
    assert "backward (torch/_tensor.py" in victim
    assert "__getitem__ (train.py" in culprit
    assert "main (train.py" in victim


def test_when_the_file_comes_the_job_goes_on_to_its_end(session) -> None:
    assert session.status == 0
    assert [state["step"]["commits"] for state in session.after] == [STEPS] * RANKS
    assert session.ended == ["Exited with code 0."] * RANKS


# -- the README's two lines, and what the script is without them -----------------------------------


def forked(folder: Path, name: str, script: Path, data: Path) -> list[tuple[int, int]]:
    """Pid and exit status of each rank."""
    words = [str(script), "--data", str(data), "--save", str(folder / f"{name}.pt")]
    job = Forked.started(folder, words, name=name)
    return [(rank.pid, rank.wait(90)) for rank in job.ranks]


@pytest.fixture(scope="module")
def plain(session, folder) -> list[tuple[int, int]]:
    """The script alone; the session's files are whole by then."""
    return forked(folder, "plain", DDP.script, folder / "texts")


@pytest.fixture(scope="module")
def two_lines(session, folder) -> list[tuple[int, int]]:
    return forked(folder, "two_lines", DDP.patched(folder), folder / "texts")


def test_the_readmes_diff_is_two_lines() -> None:
    assert DDP.changed_lines() == 2


def test_two_lines_attach_both_ranks_and_count_every_step(two_lines, folder) -> None:
    assert [status for _, status in two_lines] == [0, 0]
    for number, (pid, _) in enumerate(two_lines):
        rank = Rank(pid, folder / "run")
        state = rank.state()
        assert (state.identity.group_rank, state.identity.world_size) == (number, RANKS)
        assert state.step is not None
        assert (state.step.commits, state.step.source) == (STEPS, "optimizer")
        rank.end()


@pytest.mark.parametrize("way", ["attached", "two_lines"])
def test_what_is_printed_and_learned_is_the_same_to_the_last_bit(
    way, plain, two_lines, folder
) -> None:
    assert [status for _, status in plain] == [0, 0]
    printed = [(folder / f"{name}.out.0").read_text() for name in (way, "plain")]
    assert printed[0] == printed[1] != ""
    assert same_weights(folder / "plain.pt", folder / f"{way}.pt")


@only_explored  # make test: tests/worker_server/test_with_torch.py
def test_a_script_that_fails_fails_as_it_does_alone(folder, two_lines) -> None:
    missing = folder / "nowhere"
    patched = folder / "patched" / "train.py"
    ends = [forked(folder, f"failing{n}", s, missing) for n, s in enumerate((DDP.script, patched))]
    assert [[status for _, status in end] for end in ends] == [[1, 1], [1, 1]]
    alone, attached = ((folder / f"failing{n}.out.0").read_text() for n in range(2))
    assert alone.splitlines()[-1] == attached.splitlines()[-1]
    for pid, _ in ends[1]:
        rank = Rank(pid, folder / "run")
        wait_for(lambda of=rank: dead(of), within_s=20, what="it is dead")
        assert "FileNotFoundError" in asked(rank, "/v1/last_words")["exception"]["text"]
        rank.end()
