"""Work that would never end, or take all of the memory: it ends, and nobody is accused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import zipfile
from pathlib import Path

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands import analyze
from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.commands.offline import CannotTellError, confined
from lightkeeper.monitor.records import files
from tests.corpus.cases import Case


def never(*_args: object) -> int:
    """A loop in C, which no check of the time and no signal handler interrupts."""
    return sum(itertools.repeat(0))


def test_a_loop_in_c_is_ended_at_the_deadline() -> None:
    def work(tell):
        tell(3, 7)
        return never()

    with pytest.raises(CannotTellError, match=r"not done after 0.2 s .*3 of 7 files were read"):
        confined(work, deadline_s=0.2, progress=None)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda _: bytearray(1 << 60), "more memory than this machine has"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "out of memory"),
        (lambda _: os._exit(9), "its process died"),
    ],
    ids=["memory", "killed for its memory", "crash"],
)
def test_what_dies_of_its_input_cannot_tell(work, why) -> None:
    with pytest.raises(CannotTellError, match=why):
        confined(work, deadline_s=60, progress=None)


def test_a_result_a_refusal_and_the_progress_come_back() -> None:
    seen: list[tuple[int, int]] = []

    def refused(_tell):
        raise CommandError("no such file", 2)

    def work(tell):
        tell(1, 2)
        return "found"

    done = confined(work, deadline_s=60, progress=lambda *said: seen.append(said))
    assert (done, seen) == ("found", [(1, 2)])
    with pytest.raises(CommandError, match="no such file") as caught:
        confined(refused, deadline_s=60, progress=None)
    assert caught.value.exit_code == 2


def test_children_of_the_work_end_with_it() -> None:
    inside, outside = os.pipe()

    def work(_tell):
        if os.fork() == 0:
            signal.pause()
        return never()

    with pytest.raises(CannotTellError):
        confined(work, deadline_s=0.2, progress=None)
    os.close(outside)
    assert os.read(inside, 1) == b""  # nobody holds the other end any more
    os.close(inside)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    built = Case("not_entered", "DP", "full", blocking=True).build()
    assert built is not None
    built.write(folder)
    return folder


def test_analyze_that_is_not_done_accuses_nobody(dumps, monkeypatch, capsys) -> None:
    monkeypatch.setattr(analyze, "analyse", lambda _: threading.Event().wait(60))
    words = ["analyze", str(dumps), "--deadline", "1"]  # reading has to end in it
    assert main(words) == 3
    said = capsys.readouterr()
    why = "not done after 1 s (see --deadline)"
    assert said.err == f"error: cannot tell: {why}; 8 of 8 files were read, none was weighed\n"
    assert said.out == ""
    assert main([*words, "--format", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["cannot_tell"] == {"reason": why, "files_read": 8, "files": 8}
    assert report["culprits"] == report["verdicts"] == []


def test_more_than_is_ever_read_is_not_judged_in_part(dumps, monkeypatch, capsys) -> None:
    monkeypatch.setattr(files, "MAX_SOURCES", 7)
    assert main(["analyze", str(dumps)]) == 3
    assert "cannot tell: there is more than 7 files; no file was read" in capsys.readouterr().err
    monkeypatch.setattr(files, "MAX_SOURCES", 8)
    assert main(["analyze", str(dumps)]) == 1
    monkeypatch.setattr(files, "MAX_ALL", 100)
    assert main(["analyze", str(dumps)]) == 3


def test_a_zip_is_opened_once_however_many_members_it_has(dumps, tmp_path, monkeypatch) -> None:
    opened: list[object] = []
    plain = zipfile.ZipFile._RealGetContents  # lists the members, each time one is opened

    def counted(self):
        opened.append(self)
        return plain(self)

    for count in (20, 200):
        path = tmp_path / f"{count}.zip"
        with zipfile.ZipFile(path, "w") as bundle:
            for rank in range(count):
                bundle.write(dumps / "nccl_trace_rank_0", f"nccl_trace_rank_{rank}")
        opened.clear()
        with monkeypatch.context() as patched:
            patched.setattr(zipfile.ZipFile, "_RealGetContents", counted)
            analyze.load_job([path])
        assert len(opened) == 2  # to find the members, and to read them


def test_a_member_that_cannot_be_unpacked_spoils_its_rank_only(dumps, tmp_path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(dumps.iterdir()):
            bundle.write(file, file.name)
        place = bundle.getinfo("nccl_trace_rank_3").header_offset + 30 + len("nccl_trace_rank_3")
    raw = bytearray(path.read_bytes())
    raw[place : place + 8] = b"\xff" * 8
    path.write_bytes(raw)
    job = analyze.load_job([path])
    assert sorted(job.ranks) == [0, 1, 2, 4, 5, 6, 7]
    assert any(problem.rank == 3 and "broken zip" in problem.reason for problem in job.problems)


def test_a_manifest_that_cannot_be_unpacked_is_none(dumps, tmp_path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.write(dumps / "nccl_trace_rank_0", "nccl_trace_rank_0")
        bundle.writestr("manifest.json", '{"format": "lightkeeper-evidence"}' * 9)
        place = bundle.getinfo("manifest.json").header_offset + 30 + len("manifest.json")
    raw = bytearray(path.read_bytes())
    raw[place : place + 8] = b"\xff" * 8
    path.write_bytes(raw)
    assert sorted(analyze.load_job([path]).ranks) == [0]
