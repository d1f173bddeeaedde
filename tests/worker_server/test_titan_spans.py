"""torchtitan's spans and metrics as steps, phases and losses; torchtitan is stood in for.

The real one: tests/examples/test_torchtitan.py.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from types import ModuleType

import pytest

from lightkeeper.worker_server.integrations import torchtitan
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.worker_server.ranks import ROOT, run_python
from tests.worker_server.sources import WrittenDown


@pytest.fixture
def titan():
    """A structured logger as torchtitan has it, with our handler and what it was told."""
    calls, logger = WrittenDown(), logging.Logger("stands for torchtitan's")
    logger.addHandler(torchtitan.SpanHandler(calls, calls.close))

    def log(name, step=None, *, event=None, value=None, task=None, kind="event"):
        extra = {"log_type": kind, "log_type_name": name, "event_name": event, "step": step,
                 "relative_step": step, "value": value, "task_name": task}  # fmt: skip
        logger.info("text", extra=extra)

    return log, calls


def test_the_spans_of_a_torchtitan_step_are_its_phases(titan):
    log, calls = titan
    for name in ("training_start", "step_start", "fetching_batch_start", "fetching_batch_end"):
        log(name, 4, kind="instant" if name == "training_start" else "event")
    log("metric_value", 4, event="local_valid_tokens", value=128, kind="instant")
    for name in ("fwd_bwd_start", "post_dataloading_process_start", "post_dataloading_process_end",
                 "fwd_bwd_end", "optim_start", "optim_end", "eval_start", "eval_end",
                 "ModelConfig.build_start", "ModelConfig.build_end", "step_end"):  # fmt: skip
        log(name, 4)
    assert calls.said == [
        "begin 4", "<data", "data>", "<forward_backward", "<data", "data>", "forward_backward>",
        "<optimizer", "optimizer>", "<evaluation", "evaluation>", "end 4 True None 128",
    ]  # fmt: skip


def test_a_step_that_fails_is_not_committed(titan):
    log, calls = titan
    for name in ("step_start", "fwd_bwd_start", "fwd_bwd_error", "fwd_bwd_end", "step_error",
                 "step_end", "step_start", "step_end"):  # fmt: skip
        log(name, 4)
    assert [said for said in calls.said if said.startswith("end")] == [
        "end 4 False None 0", "end 4 True None 0",
    ]  # fmt: skip


def test_the_fault_tolerant_trainer_has_phases_and_leaves_the_steps_to_torchft(titan):
    log, calls = titan
    for name in ("fwd_bwd_start", "fwd_bwd_end", "optim_start", "optim_end"):
        log(name)
    assert calls.said == [
        "<forward_backward", "forward_backward>", "<optimizer", "optimizer>",
    ]  # fmt: skip


@pytest.mark.parametrize("trainer", ["Trainer", "FaultTolerantTrainer", "MyTrainer"])
def test_while_the_trainer_is_made_the_rank_is_in_init(titan, trainer):
    log, calls = titan
    for name in (f"{trainer}.Config.build_start", "AdamW.Config.build_start",
                 "AdamW.Config.build_end", f"{trainer}.Config.build_end"):  # fmt: skip
        log(name)
    assert calls.said == ["<init", "init>"]


def test_a_step_of_the_optimizer_for_its_state_alone_is_no_step(page):
    reporter, logger = Reporter(page), logging.Logger("stands for torchtitan's")
    logger.addHandler(torchtitan.SpanHandler(reporter.from_source("torchtitan"), print))
    optimizer, torchft = reporter.from_source("optimizer"), reporter.from_source("torchft")

    def log(name):
        extra = {"log_type": "event", "log_type_name": name, "step": None}
        logger.info("text", extra=extra)

    log("FaultTolerantTrainer.Config.build_start")
    optimizer.step(0)
    log("FaultTolerantTrainer.Config.build_end")
    for name in ("checkpoint_load_start", "checkpoint_load_end"):
        log(name)
    torchft.begin_step(0)
    assert (reporter.loop.facts.attempt, reporter.loop.facts.commits) == (1, 0)


def test_a_training_that_took_its_process_groups_down_is_over(titan):
    log, calls = titan
    log("torch_distributed_teardown_start")
    assert not calls.closed
    log("torch_distributed_teardown_end")
    assert calls.closed


def test_spans_of_asyncio_tasks_and_ends_without_a_beginning_are_left_alone(titan):
    log, calls = titan
    log("fwd_bwd_start", 1, task="Task-1")
    log("optim_end", 1)
    log("step_start", None)
    assert calls.said == []


class Metrics:
    """torchtitan's, as far as the loss goes."""

    def __init__(self):
        self.logged = []

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        self.logged.append((step, global_avg_loss, global_max_loss, grad_norm, extra_metrics))
        return "as before"


@pytest.fixture
def metrics(monkeypatch):
    """Our ears in torchtitan's metrics, and what was heard."""
    module, heard = ModuleType("torchtitan.components.metrics"), WrittenDown()
    module.MetricsProcessor = type("MetricsProcessor", (Metrics,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    torchtitan.hear_losses(heard.note_loss)
    return module.MetricsProcessor(), heard


def test_the_loss_is_the_one_that_torchtitans_metrics_are_told(metrics):
    processor, heard = metrics
    assert processor.log(4, 2.5, 2.75, 1.0, extra_metrics={"lr": 0.1}) == "as before"
    assert processor.log(step=5, global_avg_loss=2.25, global_max_loss=2.5, grad_norm=1.0)
    assert heard.said == ["loss 2.5", "loss 2.25"]
    assert processor.logged == [(4, 2.5, 2.75, 1.0, {"lr": 0.1}), (5, 2.25, 2.5, 1.0, None)]


def test_a_sum_of_the_means_of_groups_is_not_taken_for_a_mean(metrics):
    processor, heard = metrics
    processor.log(16, 8.06899, 4.95215, 1.6)  # two groups of two, seen with 0.3.0
    assert heard.said == ["loss 4.95215"]


def test_a_loss_that_is_no_number_stays_none(metrics):
    processor, heard = metrics
    processor.log(1, math.nan, 3.0, 1.0)
    processor.log(2, object(), 3.0, 1.0)  # a tensor, or of another version: left alone
    assert heard.said == ["loss nan"]


def test_metrics_of_another_version_cost_the_loss_and_nothing_else(monkeypatch):
    module = ModuleType("torchtitan.components.metrics")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("LIGHTKEEPER", "0")
    logger = logging.Logger("stands for torchtitan's")
    monkeypatch.setenv("TITAN_STRUCT_LOGGER_HANDLERS", f"{FACTORY},other.factory")
    monkeypatch.setattr("lightkeeper.worker_server.rank.attach._attached", None)
    with pytest.warns(RuntimeWarning, match="no loss"):
        torchtitan.handler(structured_logger=logger, rank=0, source="training", output_dir="out")
    assert [type(handler).__name__ for handler in logger.handlers] == ["SpanHandler"]


FACTORY = "lightkeeper.worker_server.integrations.torchtitan.handler"


@pytest.mark.parametrize(
    ("factories", "says"),
    [(FACTORY, "jsonl 3 training out"), (f"{FACTORY},other.factory", "")],
    ids=["ours alone", "beside another"],
)
def test_torchtitans_own_jsonl_goes_on_where_ours_was_all_that_was_asked_for(
    tmp_path, factories, says
):
    folder = tmp_path / "torchtitan" / "observability" / "structured_logger"
    folder.mkdir(parents=True)
    (folder / "jsonl_handler.py").write_text(
        "def register_jsonl_handler(*, structured_logger, rank, source, output_dir, **_):\n"
        "    print('jsonl', rank, source, output_dir)\n"
    )
    code = (
        f"import logging; from {FACTORY.rpartition('.')[0]} import handler\n"
        "logger = logging.Logger('x')\n"
        "handler(structured_logger=logger, rank=3, source='training', output_dir='out')\n"
        "assert len(logger.handlers) == 1\n"
    )
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    more = {"PYTHONPATH": path, "LIGHTKEEPER": "0", "TITAN_STRUCT_LOGGER_HANDLERS": factories}
    done = run_python("-c", code, **more)
    assert (done.stdout.strip(), done.stderr) == (says, "")


def test_a_source_that_breaks_is_one_warning_and_training_logs_on():
    logger = logging.Logger("stands for torchtitan's")
    logger.addHandler(torchtitan.SpanHandler(object(), print))
    extra = {"log_type": "event", "log_type_name": "step_start", "step": 1}
    with pytest.warns(RuntimeWarning, match="stopped reading torchtitan's spans"):
        logger.info("text", extra=extra)
    logger.info("text", extra=extra)  # a second warning would be an error here
