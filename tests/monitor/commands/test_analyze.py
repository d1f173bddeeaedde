"""`lightkeeper analyze` as a user meets it, on generated dumps."""

from __future__ import annotations

import io
import os
import pickle
import re
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands import analyze
from tests.corpus.cases import Case
from tests.monitor.commands.calling import Command
from tests.monitor.process import into_closed_pipe


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight ranks, one of which stopped coming."""
    return _written("not_entered", tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written("pause", tmp_path_factory.mktemp("sound"))


def _written(kind: str, folder: Path) -> Path:
    built = Case(kind, "DP", "full", blocking=True).build()
    assert built is not None
    built.write(folder)
    return folder


def test_a_fault_is_status_1_and_named_first(dumps: Path, command: Command) -> None:
    said = command("analyze", str(dumps), status=1)
    assert said.startswith("1 fault found, caused by rank ")
    assert "who waits for whom" in said


def test_no_fault_is_status_0(sound: Path, command: Command) -> None:
    said = command("analyze", str(sound))
    assert said.startswith("no fault found\nrecords of 8 of 8 ranks")


def test_json_and_text_accuse_the_same(dumps: Path, command: Command) -> None:
    report = command.json("analyze", str(dumps), status=1)
    (culprit,) = report["culprits"]
    assert f"caused by rank {culprit}\n" in command("analyze", str(dumps), status=1)
    assert report["ranks_expected"] == 8


def test_files_folders_and_zips_give_the_same(
    dumps: Path, tmp_path: Path, command: Command
) -> None:
    files = sorted(str(path) for path in dumps.iterdir())
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as bundle:
        for path in files:
            bundle.write(path, Path(path).name)
    reports = [
        command.json("analyze", *paths, status=1)
        for paths in ([str(dumps)], files, list(reversed(files)), [str(tmp_path / "all.zip")])
    ]
    assert "when the records were taken" in reports[3].pop("notes")[0]  # a zip has no dates
    assert reports[0].pop("notes") == reports[1].pop("notes") == reports[2].pop("notes") == []
    assert reports[0] == reports[1] == reports[2] == reports[3]


def test_the_page_is_written_beside_the_text(dumps: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "r.html").write_text("an earlier report, " * 99)
    said = command("analyze", str(dumps), "--html", str(tmp_path / "r.html"), status=1)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert f'<h1 class="bad">{said.splitlines()[0]}</h1>' in page


def test_a_rank_without_a_dump_is_told_and_counts(dumps: Path, command: Command) -> None:
    report = command.json("analyze", str(dumps), "--world-size", "9", status=1)
    assert (report["ranks_expected"], report["ranks_silent"]) == (9, [8])


def test_one_bad_dump_spoils_its_rank_only(sound: Path, tmp_path: Path, command: Command) -> None:
    for path in sound.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "nccl_trace_rank_3").write_bytes(b"\x80\x02cos\nsystem\n")
    said = command("analyze", str(tmp_path))
    assert "records of 7 of 8 ranks" in said
    assert "no record of rank 3" in said
    assert "nccl_trace_rank_3: " in said


# -- unusable input: one line, status 2 -----------------------------------------------------------


def _bad_input(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "rank_0").write_bytes(b"not a dump")
    (folder / "evil_0").write_bytes(pickle.dumps(print))
    (folder / "list_0").write_bytes(pickle.dumps([1, 2, 3]))
    (folder / "notes.txt").write_text("hello")
    (folder / "broken.zip").write_bytes(b"PK\x03\x04broken")
    (folder / "m.json").write_text('{"dp": [0, 0]}')
    (folder / "list.json").write_text("[1]")
    (folder / "deep.json").write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["no\nwhere\x1b[2J"], "no where[2J: no such file or folder"),
        (["empty"], "no flight record in "),
        (["rank_0"], "no usable flight record: "),
        (["evil_0"], "no usable flight record: "),
        (["list_0"], "no usable flight record: "),
        (["broken.zip"], "no usable flight record: "),
        (["notes.txt"], "no usable flight record: "),
        (["rank_0", "evil_0"], "(and 1 more)"),
        (["rank_0", "--members", "nowhere.json"], "cannot read "),
        (["rank_0", "--members", "notes.txt"], "notes.txt: JSON is malformed"),
        (["rank_0", "--members", "deep.json"], "expected lists of ranks by name"),
        (["rank_0", "--members", "list.json"], "expected lists of ranks by name"),
        (["rank_0", "--members", "m.json"], "'dp' holds a rank twice"),
        (["rank_0", "--html", "empty"], "Is a directory"),
        (["rank_0", "--html", "none/r.html"], "No such file or directory"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_one_line_and_status_2(
    words: list[str], line: str, tmp_path: Path, command: Command
) -> None:
    _bad_input(tmp_path)
    words = [word if word.startswith("--") else str(tmp_path / word) for word in words]
    assert line in command.refused("analyze", *words)


@pytest.mark.parametrize("size", ["0", "-1", "many", "99999999999"])
def test_a_world_size_is_a_plausible_number(size: str, dumps: Path, command: Command) -> None:
    command.refused("analyze", str(dumps), f"--world-size={size}")


def test_a_page_that_cannot_be_written_is_said_before_the_load(
    dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyze, "load_job", pytest.fail)
    assert main(["analyze", str(dumps), "--html", "/proc/none/r.html"]) == 2


# -- as a process ---------------------------------------------------------------------------------


def test_a_fault_of_our_own_is_not_taken_for_a_fault_of_the_job(
    dumps: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def broken(_job: object) -> object:
        raise AssertionError("a bug")

    monkeypatch.setattr(analyze, "analyse", broken)
    assert "AssertionError: a bug" in command.failed("analyze", str(dumps), status=70)


def test_an_interrupt_is_no_verdict(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze, "load_job", interrupted)
    assert main(["analyze", str(dumps)]) == 130


def test_a_closed_pipe_keeps_the_status(dumps: Path) -> None:
    assert into_closed_pipe("analyze", str(dumps)) == (1, b"")


def test_an_ascii_terminal_gets_what_it_can_show(
    dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["analyze", str(dumps)]) == 1
    assert b"caused by rank" in shown.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nothing_of_it_stays(
    dumps: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert command.json("analyze", str(dumps), status=1)["schema"] == 1
    shown = terminal.getvalue()
    assert "100%" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert shown.endswith("\x1b[1A\x1b[2K")  # up, and the line wiped


def test_help_teaches(command: Command) -> None:
    said = command("analyze", "--help")
    for words in ("exit status", "--world-size", "examples:", "/v1/flight_recorder", "ends in its"):
        assert words in said


def test_a_dump_is_never_run(tmp_path: Path, command: Command) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "rank_0").write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    command.refused("analyze", str(tmp_path / "rank_0"))
    assert not marker.exists()


def test_an_unreadable_file_is_said(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "rank_0")
    assert stat.S_ISFIFO((tmp_path / "rank_0").stat().st_mode)
    command.refused("analyze", str(tmp_path))
