"""The runs of experiment trackers that a rank writes to: found, bounded, and never in the way."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import trackers
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from tests.worker_server.ranks import run_python

WANDB = {"wandb_run": "me5rsy13", "wandb_project": "llm", "wandb_entity": "lab"}
BOARD = "tensorboard.summary.writer.event_file_writer"


@pytest.fixture(autouse=True)
def none_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow.tracking.fluent", BOARD):
        monkeypatch.delitem(sys.modules, name, raising=False)


def imported(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def wandb_run(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"id": "me5rsy13", "project": "llm", "entity": "lab", **more})


def test_without_such_a_library_nothing_is_found_and_none_is_imported() -> None:
    assert trackers.tracker_runs() == {}
    assert {"wandb", "mlflow", "tensorboard"}.isdisjoint(sys.modules)


def test_an_imported_library_without_a_run_says_nothing(monkeypatch) -> None:
    imported(monkeypatch, "wandb", run=None)
    assert trackers.tracker_runs() == {}


def test_the_run_of_wandb(monkeypatch) -> None:
    imported(monkeypatch, "wandb", run=wandb_run())
    assert trackers.tracker_runs() == WANDB


def test_the_active_run_of_mlflow_whichever_thread_began_it(monkeypatch) -> None:
    run = SimpleNamespace(info=SimpleNamespace(run_id="d720b433", experiment_id="7"))
    stack = SimpleNamespace(get_all_thread_values=lambda: {1: [], 2: [SimpleNamespace(), run]})
    imported(monkeypatch, "mlflow.tracking.fluent", _active_run_stack=stack)
    assert trackers.tracker_runs() == {"mlflow_run": "d720b433", "mlflow_experiment": "7"}


def test_the_folder_of_an_open_writer_of_tensorboard(monkeypatch) -> None:
    over = threading.Event()

    class Writer(threading.Thread):
        _record_writer = SimpleNamespace(_writer=SimpleNamespace(filename=b"/logs/a/events.1"))

    thread = Writer(target=over.wait, daemon=True)
    imported(monkeypatch, BOARD, _AsyncWriterThread=Writer)
    assert trackers.tracker_runs() == {}
    thread.start()
    try:
        assert trackers.tracker_runs() == {"tensorboard_dir": "/logs/a"}
    finally:
        over.set()
        thread.join()


class Odd:
    """Another version: what is asked for raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "run",
    [
        Odd(), wandb_run(id=None, project=7, entity=b"x"),
        wandb_run(id="", project="a\n", entity="x" * 257),
    ],
    ids=["raises", "no-texts", "out-of-bounds"],
)  # fmt: skip
def test_what_makes_no_sense_is_left_out(run: Any, monkeypatch) -> None:
    imported(monkeypatch, "wandb", run=run)
    imported(monkeypatch, "mlflow.tracking.fluent")
    imported(monkeypatch, BOARD)
    assert trackers.tracker_runs() == {}


def test_the_state_has_it_from_the_beat_on_and_keeps_a_run_that_is_over(
    page: PageWriter, reader: PageReader, monkeypatch
) -> None:
    look = trackers.telling(page)
    look()
    assert "trackers" not in wire.to_json(reader.report(wire.Process(alive=True), 0))
    imported(monkeypatch, "wandb", run=wandb_run(project="Größe"))
    look()
    monkeypatch.setattr(sys.modules["wandb"], "run", None)
    look()
    report = reader.report(wire.Process(alive=True), 0)
    said = {**WANDB, "wandb_project": "Größe"}
    assert report.trackers == said
    assert wire.parse_state(wire.to_json(report)).trackers == said
    body = json.dumps({
        "schema": 1, "host": "h",
        "entries": [{"rank": report.identity.rank, "report": wire.to_json(report)}],
    })  # fmt: skip
    (entry,) = wire.HostReader().read(body.encode()).entries
    assert entry.report is not None
    assert entry.report.trackers == said


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": "' + "x" * 257 + '"}', "[" * 3000]
)
def test_a_note_that_makes_no_sense_is_no_run(
    text: str, page: PageWriter, reader: PageReader
) -> None:
    page.write_note(layout.NOTE_TRACKERS, text)
    assert reader.report(wire.Process(alive=True), 0).trackers == {}


REAL = """
import os, sys
from lightkeeper.worker_server.rank import trackers
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true")
match sys.argv[1]:
    case "wandb":
        import wandb
        run = wandb.init(project="llm")
        expected = {"wandb_run": run.id, "wandb_project": "llm"}
    case "mlflow":
        import mlflow
        mlflow.set_tracking_uri("file://" + os.getcwd() + "/mlruns")
        run = mlflow.start_run()
        expected = {"mlflow_run": run.info.run_id, "mlflow_experiment": run.info.experiment_id}
    case "tensorboard":
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("logs/a")
        expected = {"tensorboard_dir": "logs/a"}
import threading
found = []
thread = threading.Thread(target=lambda: found.append(trackers.tracker_runs()))
thread.start()
thread.join()
assert found == [expected], (found, expected)
"""


@pytest.mark.integration
@pytest.mark.parametrize("library", ["wandb", "mlflow", "tensorboard"])
def test_a_real_library_says_its_run_to_another_thread(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed (pip install {library})")
    done = run_python("-c", REAL, library, cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
