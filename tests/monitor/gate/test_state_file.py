"""What the gate keeps on disk, and what it makes of a file that somebody spoiled."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from lightkeeper.monitor.gate.denylist import Denial, DenialScope, denials_json
from lightkeeper.monitor.gate.quorum_ids import RESERVED_MOST
from lightkeeper.monitor.gate.serve import StateFile

DENIAL = Denial(DenialScope.HOST, "node-7", "bad memory")
GOOD = {**denials_json([DENIAL]), "quorum_ids_reserved": 300}


def test_list_and_count_come_back(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "gate.json")
    assert file.recall() == ()
    asyncio.run(file.keep([DENIAL]))
    asyncio.run(file.reserve(100))
    again = StateFile(tmp_path / "new" / "gate.json")
    assert again.recall() == (DENIAL,)
    assert again.reserved == 100
    assert again.trouble is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["gate.json"]


def test_a_new_list_leaves_the_count_and_a_count_leaves_the_list(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(GOOD))
    file = StateFile(path)
    file.recall()
    asyncio.run(file.keep([]))
    assert json.loads(path.read_text()) == {"denied": [], "quorum_ids_reserved": 300}
    asyncio.run(file.keep([DENIAL]))
    asyncio.run(file.reserve(400))
    assert json.loads(path.read_text()) == {**GOOD, "quorum_ids_reserved": 400}


def test_a_count_never_falls_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(GOOD))
    file = StateFile(path)
    file.recall()
    asyncio.run(file.reserve(100))
    assert json.loads(path.read_text())["quorum_ids_reserved"] == 300


def test_a_file_from_before_there_was_a_count_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(denials_json([DENIAL])))
    file = StateFile(path)
    assert file.recall() == (DENIAL,)
    assert (file.reserved, file.trouble) == (0, None)


@pytest.mark.parametrize(
    "count",
    [-1, 1.5, "7", True, None, [], RESERVED_MOST + 1, 2**200],
    ids=lambda count: str(count)[:20],
)
def test_a_count_that_is_none_is_said(
    tmp_path: Path, count: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps({**GOOD, "quorum_ids_reserved": count}))
    file = StateFile(path)
    assert file.recall() == ()
    assert file.reserved == 0
    assert "nobody is denied until the monitor says so, and quorum ids begin above 0" in caplog.text


def test_a_list_that_is_none_costs_only_the_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps({**GOOD, "denied": "everybody"}))
    file = StateFile(path)
    assert file.recall() == ()
    assert file.reserved == 300
    assert (
        "nobody is denied until the monitor says so, and quorum ids begin above 300" in caplog.text
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 64, b"\xff\xfe", b"{", b'"text"', b"[" * 200_000, b"1" * 5000, b"NaN",
     json.dumps(GOOD).encode()[:-20]],
    ids=["empty", "zeros", "no-text", "cut", "text", "deep", "long-number", "nan", "half"],
)  # fmt: skip
def test_a_spoiled_file_is_said_and_replaced(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(body)
    file = StateFile(path)
    assert file.recall() == ()
    assert file.reserved == 0
    assert file.trouble is not None
    assert "cannot read" in caplog.text
    asyncio.run(file.reserve(100))
    assert "cannot read" in str(file.trouble), "until a list is taught"
    asyncio.run(file.keep([DENIAL]))
    assert file.trouble is None
    assert json.loads(path.read_text()) == {**GOOD, "quorum_ids_reserved": 100}


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
    for number in (100, 200):
        asyncio.run(file.reserve(number))
    assert file.reserved == 0, "the disk does not know it"
    assert "cannot write" in str(file.trouble)
    assert caplog.text.count("held in memory only") == 1


def test_without_a_file_nothing_is_kept() -> None:
    file = StateFile(None)
    assert file.recall() == ()
    asyncio.run(file.keep([DENIAL]))
    asyncio.run(file.reserve(100))
    assert (file.reserved, file.trouble) == (0, None)
