"""A pipe, a device or a huge file is one line, at once: no command waits for it or reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkeeper.monitor.records import files
from tests.monitor.commands.calling import Command
from tests.security.words import check_harmless

DEVICES = ["/dev/null", "/dev/zero", "/dev/tty"]
READS = {
    "check policy": "check policy {}",
    "replay": "replay {}", "replay a policy": "replay /nonexistent --policy {}",
    "analyze": "analyze {}", "analyze with members": "analyze {folder} --members {}",
    "stragglers": "stragglers {}",
}  # fmt: skip


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "rank_0.pickle")
    return str(tmp_path / "rank_0.pickle")


@pytest.mark.parametrize("words", READS.values(), ids=READS)
@pytest.mark.parametrize("which", ["fifo", *DEVICES])
def test_no_command_waits_for_a_pipe_or_a_device(
    words: str, which: str, fifo: str, tmp_path: Path, command: Command
) -> None:
    path = fifo if which == "fifo" else which
    said = command.refused(*words.format(path, folder=tmp_path).split(), status=2)
    check_harmless(said)


def test_a_pipe_in_a_folder_of_dumps_is_one_problem(fifo: str, command: Command) -> None:
    said = command.refused("analyze", str(Path(fifo).parent), status=2)
    assert "neither a file nor a folder" in said


def test_a_huge_dump_is_refused_and_not_read(tmp_path: Path, command: Command) -> None:
    with (tmp_path / "rank_0.pickle").open("wb") as file:
        file.write(b"\x80\x02]")
        file.truncate(1 << 40)  # a hole: it takes no room here
    for paths in ([str(tmp_path)], [str(tmp_path / "rank_0.pickle")]):
        said = command.refused("analyze", *paths, status=3)
        assert "GiB" in said
    os.truncate(tmp_path / "rank_0.pickle", files.MAX_FILE + 1)
    said = command.refused("analyze", str(tmp_path), status=2)
    assert "bytes" in said
