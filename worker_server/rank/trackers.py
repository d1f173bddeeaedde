"""Which runs of W&B, MLflow and TensorBoard this rank writes to: for links, never for a decision.

A chore of the beat reads it, in microseconds, from libraries that the program has imported. Nothing
is imported, changed or asked over a network; what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.wire import WORD_MAX_CHARS


def telling(page: PageWriter) -> Callable[[], None]:
    """A chore of the beat: leaves a note when there is news. A run that is over stays there."""
    latest: dict[str, str] = {}

    def look() -> None:
        runs = latest | tracker_runs()
        if runs != latest:
            latest.update(runs)
            page.write_note(layout.NOTE_TRACKERS, json.dumps(runs, ensure_ascii=False))

    return look


def tracker_runs() -> dict[str, str]:
    """What is known, by the names of `wire.TRACKERS`. Never raises."""
    runs: dict[str, Any] = {}
    for read in (_wandb, _mlflow, _tensorboard):
        with contextlib.suppress(Exception):  # half imported, or another version of theirs
            runs |= dict(read())
    return {
        name: value
        for name, value in runs.items()
        if type(value) is str and value.isprintable() and 0 < len(value) <= WORD_MAX_CHARS
    }


def _wandb() -> Iterator[tuple[str, Any]]:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        yield from {
            "wandb_run": run.id, "wandb_project": run.project, "wandb_entity": run.entity
        }.items()  # fmt: skip


def _mlflow() -> Iterator[tuple[str, Any]]:
    """Runs of all threads: `mlflow.active_run` answers only for the thread that asks."""
    module = sys.modules.get("mlflow.tracking.fluent")
    stacks = {} if module is None else module._active_run_stack.get_all_thread_values()
    for run in (run for stack in tuple(stacks.values()) for run in stack[-1:]):
        yield "mlflow_run", run.info.run_id
        yield "mlflow_experiment", run.info.experiment_id


def _tensorboard() -> Iterator[tuple[str, Any]]:
    """The folder of an open writer: each has a thread that knows its file."""
    module = sys.modules.get("tensorboard.summary.writer.event_file_writer")
    for thread in () if module is None else threading.enumerate():
        if module is not None and isinstance(thread, module._AsyncWriterThread):
            file = thread._record_writer._writer.filename
            yield "tensorboard_dir", os.path.dirname(os.fsdecode(file))
