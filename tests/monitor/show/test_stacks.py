"""Stacks of a bundle on its incident's page: read on request, within bounds, or why not."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.show.web import stacks as stacks_module
from lightkeeper.monitor.show.web.incident_page import BundleStacks
from lightkeeper.monitor.show.web.stacks import StacksReader
from tests.monitor.act.evidence.scene import REAL

ID = IncidentId("inc-1")


def reader_of(folder: Path) -> StacksReader:
    bundles = BundleDir(folder, KeeperConfig())
    bundles.open()
    return StacksReader(bundles)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Of a real fleet."""
    return Path(shutil.copy(REAL, tmp_path / "inc-1.zip"))


def test_a_real_bundle_is_read_once_while_it_stays_as_it_is(bundle: Path, monkeypatch) -> None:
    reader = reader_of(bundle.parent)
    shown = reader.get(ID)
    assert shown.why == ""
    assert "_hold_gil (trainer/faults.py:228)" in shown.markup
    with monkeypatch.context() as patch:
        patch.setattr(stacks_module, "_read", None)
        assert reader.get(ID) is shown
    os.utime(bundle, (1, 1))
    again = reader.get(ID)
    assert again is not shown
    assert again == shown


def test_where_there_is_no_bundle_there_is_nothing(tmp_path: Path) -> None:
    assert reader_of(tmp_path).get(ID) == BundleStacks()


def test_a_bundle_that_is_gone_is_told(bundle: Path) -> None:
    reader = reader_of(bundle.parent)
    bundle.unlink()
    assert reader.get(ID).why == "the bundle cannot be read: No such file or directory"


@pytest.mark.parametrize("nbytes", [0, 1, 10_000, REAL.stat().st_size - 1])
def test_a_bundle_that_was_cut_off_is_damaged(nbytes: int, bundle: Path) -> None:
    bundle.write_bytes(REAL.read_bytes()[:nbytes])
    shown = reader_of(bundle.parent).get(ID)
    assert shown.markup == ""
    assert shown.why.startswith("the bundle is damaged")


def part(rank: str, file: str | None, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "part": "stacks", "file": file, "status": "ok", **more}


def zipped(folder: Path, members: dict[str, str], parts: list[dict[str, Any]]) -> StacksReader:
    body = {"format": "lightkeeper-evidence", "schema": 1, "id": "x",
            "incident": {"culprits": ["rg_1.0"]},
            "moments": [{"moment": "firing", "began_s": 1.0, "parts": parts}]}  # fmt: skip
    with zipfile.ZipFile(folder / "inc-1.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("manifest.json", json.dumps(body))
        for name, text in members.items():
            made.writestr(name, text)
    return reader_of(folder)


def stack_of(where: str) -> str:
    return f'Thread 1 (idle): "MainThread"\n    {where} (train.py:1)\n'


def test_what_did_not_come_is_told_beside_what_did(tmp_path: Path) -> None:
    parts = [part("rg_0.0", None, status="late"), part("rg_1.0", "a.txt"), part("rg_2.0", "gone")]
    shown = zipped(tmp_path, {"a.txt": stack_of("stuck")}, parts).get(ID)
    assert "stuck (train.py:1)" in shown.markup
    assert "No stacks of rg_0.0: late" in shown.markup
    assert "No stacks of rg_2.0: damaged: " in shown.markup


def test_the_culprits_stacks_are_read_first_and_what_is_too_much_is_told(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(stacks_module, "_ALL_MAX", 10)
    parts = [part("rg_0.0", "b.txt"), part("rg_1.0", "a.txt")]
    reader = zipped(tmp_path, {"a.txt": stack_of("culprit"), "b.txt": stack_of("other")}, parts)
    shown = reader.get(ID)
    assert "No stacks of rg_0.0: too much for a page; the bundle has them" in shown.markup
    assert "No stacks of rg_1.0" not in shown.markup


def test_reading_ends_at_its_deadline(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stacks_module, "_READ_S", -1.0)  # no lock is waited for so long
    zipped(tmp_path, {"a.txt": stack_of("x")}, [part("rg_1.0", "a.txt")])
    shown = stacks_module._read(tmp_path / "inc-1.zip", 1)
    assert "too much for a page" in shown.markup


def test_one_at_a_time(bundle: Path, monkeypatch) -> None:
    monkeypatch.setattr(stacks_module, "_READ_S", 0.0)
    reader = reader_of(bundle.parent)
    with reader._lock:
        assert reader.get(ID).why.startswith("another incident's evidence is being read")


def test_more_than_a_page_bears_is_not_shown(bundle: Path, monkeypatch) -> None:
    monkeypatch.setattr(stacks_module, "_PAGE_MAX", 100)
    assert reader_of(bundle.parent).get(ID).why == "so many stacks are too much for a page"
