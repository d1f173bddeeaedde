"""Pictures of a bundle: made by another process, once, one at a time; every way to fail is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.evidence import drawings as drawings_module
from monitor.evidence.draw import main
from monitor.evidence.drawings import Bounds, Drawings
from monitor.evidence.shelf import Keep, Shelf
from monitor.names import IncidentId
from monitor.reports.incident_evidence import Drawn, Stage
from tests.monitor.shell.fakes import wait_until

pytestmark = pytest.mark.integration  # processes
ID = IncidentId("inc-1")
REAL = Path(__file__).parent / "cases" / "gil-held-real-fleet.zip"


class Folder:
    """A shelf with one bundle, and who draws it."""

    def __init__(self, folder: Path, bounds: Bounds | None = None) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.bundle = folder / "inc-1.zip"
        if not self.bundle.exists():
            shutil.copy(REAL, self.bundle)
        self.shelf = Shelf(folder, Keep(10, 1e9, 1 << 40))
        self.shelf.open()
        self.drawings = Drawings(self.shelf, bounds)

    def settled(self) -> Drawn:
        """What there is when nobody works at it any more."""

        def there() -> Drawn | None:
            drawn = self.drawings.get(ID)
            return None if drawn.awaited else drawn

        return wait_until(there, 60, "the picture")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "evidence")
    yield made
    made.drawings.close()


def test_a_real_bundle_is_drawn_once_and_kept_beside_it(folder: Folder, monkeypatch) -> None:
    assert folder.drawings.get(ID).stage is Stage.MAKING
    drawn = folder.settled()
    assert (drawn.stage, drawn.why) == (Stage.READY, "")
    assert "_hold_gil (trainer/faults.py:228)" in drawn.parts["stacks"]
    assert 'class="node culprit"' in drawn.parts["graph"]
    assert 'class="cell' in drawn.parts["timeline"]
    assert "read" in drawn.parts["look"]
    kept = folder.folder / "inc-1.drawn"
    assert kept.stat().st_mode & 0o777 == 0o600, "stacks may hold secrets of the job"

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("drawn twice")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert Folder(folder.folder).drawings.get(ID) == drawn, "a restarted monitor has it too"


def test_a_bundle_that_was_written_anew_is_drawn_anew_and_the_old_one_shown_meanwhile(
    folder: Folder,
) -> None:
    before = folder.settled()
    os.utime(folder.bundle, (1, 1))
    meanwhile = folder.drawings.get(ID)
    assert (meanwhile.stage, meanwhile.parts) == (Stage.MAKING, before.parts)
    after = folder.settled()
    assert after.stage is Stage.READY
    assert after.stamp != before.stamp


def test_one_at_a_time(folder: Folder) -> None:
    shutil.copy(REAL, folder.folder / "inc-2.zip")
    folder.shelf.open()
    assert folder.drawings.get(ID).stage is Stage.MAKING
    assert folder.drawings.get(IncidentId("inc-2")).stage is Stage.WAITING
    folder.settled()


def test_what_is_drawn_goes_with_its_bundle(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    for name in ("inc-1.zip", "inc-1.drawn", "inc-0.drawn"):
        (folder / name).write_bytes(b"x")
    shelf = Shelf(folder, Keep(10, 1.0, 1 << 40))
    shelf.open()
    assert sorted(os.listdir(folder)) == ["inc-1.drawn", "inc-1.zip"], "an orphan goes at once"
    shutil.copy(folder / "inc-1.zip", folder / "inc-2.zip")
    os.utime(folder / "inc-1.zip", (1, 1))
    shelf.open()
    shelf.tidy(os.stat(folder / "inc-2.zip").st_mtime)
    assert os.listdir(folder) == ["inc-2.zip"]


def test_a_broken_bundle_gives_a_sentence_and_is_not_tried_again_and_again(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "inc-1.zip").write_bytes(b"no zip at all")
    folder = Folder(tmp_path / "evidence")
    drawn = folder.settled()
    why = "the bundle is damaged: its manifest cannot be read"
    assert (drawn.stage, drawn.why) == (Stage.FAILED, why)
    monkeypatch.setattr(folder.drawings, "_run", None)
    assert folder.drawings.get(ID).stage is Stage.FAILED


@pytest.mark.parametrize("nbytes", [0, 1, 10_000, REAL.stat().st_size - 1])
def test_a_bundle_that_was_cut_off_is_damaged(nbytes: int, tmp_path: Path, capsys) -> None:
    bundle = tmp_path / "cut.zip"
    bundle.write_bytes(REAL.read_bytes()[:nbytes])
    status, said, parts = drawn_of(bundle, capsys)
    assert (status, parts) == (3, {})
    assert said.startswith("the bundle is damaged: ")


def zipped(path: Path, *members: tuple[str, bytes], **manifest: Any) -> Path:
    body = {"format": "lightkeeper-evidence", "schema": 1, "id": "x", "incident": None, **manifest}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("manifest.json", json.dumps(body))
        for name, content in members:
            bundle.writestr(name, content)
    return path


def part(rank: str, kind: str, file: str | None, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "part": kind, "file": file, "status": "ok", **more}


def drawn_of(bundle: Path, capsys) -> tuple[int, str, dict[str, str]]:
    """The process's own code, run here: its status, what it said, what it made."""
    out = bundle.with_suffix(".drawn")
    status = main([str(bundle), str(out), "stamp"])
    parts = json.loads(out.read_text())["parts"] if out.exists() else {}
    return status, capsys.readouterr().err.strip(), parts


def test_a_bundle_that_unpacks_to_too_much_is_left_to_the_command(tmp_path: Path, capsys) -> None:
    bundle = zipped(tmp_path / "bomb.zip", ("firing/a.0/state.json", b"0" * (257 << 20)))
    status, said, _ = drawn_of(bundle, capsys)
    assert status == 3
    assert said == (
        "the bundle unpacks to 257 MiB, at most 256 are drawn: lightkeeper analyze reads it"
    )


def test_stacks_are_shown_where_no_record_came_and_hostile_text_stays_text(
    tmp_path: Path, capsys
) -> None:
    evil = "<script>alert(1)</script>"
    stacks = f'Thread 1 (idle): "MainThread"\n    {evil} (x.py:1)\n'.encode()
    moments = [{
        "moment": "firing", "began_s": 1.0,
        "parts": [part(evil, "stacks", "firing/e/stacks.txt"),
                  part("a.1", "stacks", None, status="late", error=evil),
                  part("a.2", "stacks", "../../../etc/passwd"),
                  part("a.1", "flight_recorder", None, status="late", error=evil)],
    }]  # fmt: skip
    bundle = zipped(tmp_path / "b.zip", ("firing/e/stacks.txt", stacks), moments=moments)
    status, said, parts = drawn_of(bundle, capsys)
    assert (status, said) == (0, "")
    text = "".join(parts.values())
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "No rank gave a flight record" in parts["look"]
    assert "damaged: " in parts["stacks"], "a member that is not there is looked for nowhere else"
    assert "root:" not in text


def test_a_disk_that_takes_nothing_gives_a_sentence(tmp_path: Path, capsys) -> None:
    bundle = zipped(tmp_path / "b.zip", moments=[])
    status = main([str(bundle), "/dev/full/nowhere", "stamp"])
    assert status == 3
    assert capsys.readouterr().err.startswith("it cannot be read, or the picture not kept: ")


def test_what_takes_too_long_or_too_much_memory_is_ended_and_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "evidence", Bounds(seconds=0.01))
    assert folder.settled().why.startswith("it took more than 0 s: lightkeeper analyze")
    folder = Folder(tmp_path / "evidence", Bounds(memory=64 << 20))
    why = folder.settled().why
    assert "memory" in why or "its process ended with" in why


def test_the_process_is_nice_and_knows_no_token(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")
    folder = Folder(tmp_path / "evidence")
    seen: list[tuple[int, dict[str, str]]] = []
    real = subprocess.Popen

    def look(command: list[str], **more: Any) -> Any:
        sleeper = real([sys.executable, "-c", "import time; time.sleep(30)"], **more)
        seen.append((sleeper.pid, more["env"]))
        return sleeper

    monkeypatch.setattr(drawings_module.subprocess, "Popen", look)
    folder.drawings.get(ID)
    wait_until(lambda: seen and os.getpriority(os.PRIO_PROCESS, seen[0][0]) == 10, 10, "nice")
    assert "secret" not in seen[0][1].values()
    folder.drawings.close()
    wait_until(lambda: not folder.drawings.get(ID).awaited, 10, "it ended with the monitor")
