"""What the gate keeps on disk, and what it makes of a file that somebody spoiled."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from lightkeeper.monitor.gate.denylist import Denial, DenialScope, denials_json
from lightkeeper.monitor.gate.serve import NewestFile, StateFile

DENIAL = Denial(DenialScope.HOST, "node-7", "bad memory")
GOOD = denials_json([DENIAL])


def test_the_list_comes_back(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "gate.json")
    assert file.recall() == ()
    asyncio.run(file.keep([DENIAL]))
    again = StateFile(tmp_path / "new" / "gate.json")
    assert again.recall() == (DENIAL,)
    assert again.trouble is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["gate.json"]


def test_a_file_of_an_older_gate_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps({**GOOD, "quorum_ids_reserved": 300}))
    file = StateFile(path)
    assert (file.recall(), file.trouble) == ((DENIAL,), None)


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 64, b"\xff\xfe", b"{", b'"text"', b"[" * 200_000, b"1" * 5000, b"NaN",
     b'{"denied": "everybody"}', json.dumps(GOOD).encode()[:-20]],
    ids=["empty", "zeros", "no-text", "cut", "text", "deep", "long-number", "nan",
         "no-list", "half"],
)  # fmt: skip
def test_a_spoiled_file_is_said_and_replaced(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(body)
    file = StateFile(path)
    assert file.recall() == ()
    assert file.trouble is not None
    assert "cannot read" in caplog.text
    assert "nobody is denied until the monitor says so" in caplog.text
    asyncio.run(file.keep([DENIAL]))
    assert file.trouble is None
    assert json.loads(path.read_text()) == GOOD


def test_a_pipe_or_a_folder_in_its_place_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        file = StateFile(tmp_path / name)
        assert file.recall() == ()
        asyncio.run(file.keep([DENIAL]))
        assert "it is no file" in str(file.trouble)
        assert (tmp_path / name).is_fifo() or (tmp_path / name).is_dir()


def test_a_disk_that_fails_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    file = StateFile(tmp_path / "file" / "gate.json")
    file.recall()
    for _ in range(2):
        asyncio.run(file.keep([DENIAL]))
    assert "cannot write" in str(file.trouble)
    assert caplog.text.count("held in memory only") == 1


def test_without_a_file_nothing_is_kept() -> None:
    file = StateFile(None)
    assert file.recall() == ()
    asyncio.run(file.keep([DENIAL]))
    assert file.trouble is None


def test_the_newest_answer_outlives_the_process(tmp_path: Path) -> None:
    for answer in (b"", b"a longer answer", b"short"):
        file = NewestFile(29511, tmp_path)
        file.write(answer)
        again = NewestFile(29511, tmp_path)
        assert again.read() == answer
        assert NewestFile(29512, tmp_path).read() == b""
    NewestFile(29512, tmp_path).remove()
    [path] = sorted(tmp_path.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    for cut in range(path.stat().st_size):
        file.write(b"another answer, cut short")
        os.truncate(path, cut)
        assert again.read() == b""


def test_a_link_in_the_newest_answers_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep")
    (tmp_path / f"lightkeeper-gate-{os.geteuid()}-29511").symlink_to(tmp_path / "secret")
    file = NewestFile(29511, tmp_path)
    file.write(b"answer")
    assert file.read() == b""
    assert (tmp_path / "secret").read_text() == "keep"
