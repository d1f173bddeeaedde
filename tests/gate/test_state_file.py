"""What of a gate outlives its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkeeper.gate.denylist import Denial, DenialScope
from lightkeeper.gate.serve import MemoryFile

DENIAL = Denial(DenialScope.HOST, "node-7", "bad memory")


def test_the_list_comes_back(tmp_path: Path) -> None:
    file = MemoryFile("29511-lh-1", tmp_path)
    assert file.refused() == ()
    file.refuse([DENIAL])
    assert MemoryFile("29511-lh-1", tmp_path).refused() == (DENIAL,)
    assert MemoryFile("29511-lh-2", tmp_path).refused() == ()


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b"{", b'"text"', b"[" * 200_000, b"NaN", b'{"denied": "everybody"}'],
    ids=["no-text", "cut", "text", "deep", "nan", "no-list"],
)
def test_a_list_that_cannot_be_read_is_none(tmp_path: Path, body: bytes) -> None:
    file = MemoryFile("29511-lh-1", tmp_path)
    file.write(body)
    assert file.refused() == ()


def test_the_newest_answer_outlives_the_process(tmp_path: Path) -> None:
    for answer in (b"", b"a longer answer", b"short"):
        file = MemoryFile("29511", tmp_path)
        file.write(answer)
        again = MemoryFile("29511", tmp_path)
        assert again.read() == answer
        assert MemoryFile("29512", tmp_path).read() == b""
    MemoryFile("29512", tmp_path).remove()
    [path] = sorted(tmp_path.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    for cut in range(path.stat().st_size):
        file.write(b"another answer, cut short")
        os.truncate(path, cut)
        assert again.read() == b""


def test_a_link_in_the_newest_answers_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep")
    (tmp_path / f"lightkeeper-gate-{os.geteuid()}-29511").symlink_to(tmp_path / "secret")
    file = MemoryFile("29511", tmp_path)
    file.write(b"answer")
    assert file.read() == b""
    assert (tmp_path / "secret").read_text() == "keep"
