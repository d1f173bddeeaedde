"""torchtitan's spans as steps and phases.

    TITAN_STRUCT_LOGGER_HANDLERS=lightkeeper.worker_server.integrations.torchtitan.handler

torchtitan (0.3.0) calls the factories that this variable names, once per rank, before it builds the
trainer. It then logs a record when a span begins and when it ends. Setting the variable turns off
torchtitan's own JSONL files, which a user who sets it for us did not ask for: if ours is the only
factory, it keeps writing them.

The fault tolerant trainer logs no `step` span: there the phases are torchtitan's and the steps
come from the next source, TorchFT. Neither trainer has the loss in a span: they pass it to their
metrics, on every rank, every `--metrics.log_freq` steps.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.integrations import Spans

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import ReportSource

_VARIABLE = "TITAN_STRUCT_LOGGER_HANDLERS"
_JSONL = "torchtitan.observability.structured_logger.jsonl_handler"
_METRICS = "torchtitan.components.metrics"
_PHASES = {
    "fetching_batch": "data",
    "post_dataloading_process": "data",
    "fwd_bwd": "forward_backward",
    "optim": "optimizer",
    "collect_dist_metrics": "communication",
    "checkpoint_save": "checkpoint",
    "checkpoint_load": "checkpoint",
    "eval": "evaluation",
    "gc_collect": "gc",
    "kineto_profiler_step_call": "profiler",
    "memory_profiler_step_call": "profiler",
}
_BUILDING = "Trainer.Config.build"
"""Suffix of the span that builds the trainer, `FaultTolerantTrainer` or one of the user's: it steps
the optimizers once, with a rate of 0, to create their state."""
_OVER = "torch_distributed_teardown_end"
"""Only training that succeeded tears down its process groups."""
_TOKENS = "local_valid_tokens"


def handler(*, structured_logger: logging.Logger, rank: int, source: str, output_dir: str) -> None:
    """The factory that torchtitan calls; attaches this rank as well."""
    try:
        from lightkeeper.worker_server import attach  # noqa: PLC0415  torchtitan imports us by name

        reporter: Any = attach()
        spans = reporter.from_source("torchtitan")
        structured_logger.addHandler(SpanHandler(spans, reporter.close))
        hear_losses(spans.note_loss)
    except Exception as exc:  # noqa: BLE001  training continues
        warn(f"lightkeeper sees no spans, or no loss, of torchtitan: {exc!r}")
    named = [name.strip() for name in os.environ.get(_VARIABLE, "").split(",") if name.strip()]
    if named == [f"{__name__}.{handler.__name__}"]:
        _write_jsonl(structured_logger, rank, source, output_dir)


def _write_jsonl(logger: logging.Logger, rank: int, source: str, output_dir: str) -> None:
    try:
        register = importlib.import_module(_JSONL).register_jsonl_handler
    except (ImportError, AttributeError) as exc:
        warn(f"torchtitan's own JSONL handler is not where 0.3.0 has it: {exc}")
        return
    register(structured_logger=logger, rank=rank, source=source, output_dir=output_dir)


def hear_losses(note: Callable[[float], None]) -> None:
    """Pass `note` each loss that torchtitan's metrics get; if used, they are imported by now.

    Raises:
        AttributeError: this version's metrics differ from those of 0.3.0.
    """
    metrics = sys.modules.get(_METRICS)
    if metrics is None:
        return
    original = metrics.MetricsProcessor.log

    @functools.wraps(original)
    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = mean_loss(*args, **kwargs)
        if loss is not None:
            note(loss)
        return original(self, *args, **kwargs)

    metrics.MetricsProcessor.log = log


def mean_loss(
    step: Any = None,  # noqa: ARG001  as torchtitan's own method is called
    global_avg_loss: Any = None,
    global_max_loss: Any = None,
    *_: Any,
    **__: Any,
) -> float | None:
    """The mean loss per token.

    The fault tolerant trainer of 0.3.0 adds up the groups' means and calls the sum the average. A
    mean never exceeds the largest loss of a rank, so there the largest is the best estimate.
    """
    if not isinstance(global_avg_loss, float):
        return None
    if isinstance(global_max_loss, float):
        return min(global_avg_loss, global_max_loss)  # in this order NaN stays NaN
    return global_avg_loss


class SpanHandler(logging.Handler):
    """Turns records into steps and phases; never raises."""

    def __init__(self, source: ReportSource, close: Callable[[], None]) -> None:
        super().__init__(logging.INFO)
        self._source = source
        self._close = close
        self._spans = Spans(source)
        self._tokens = 0
        self._failed = False
        self._on = True

    def emit(self, record: logging.LogRecord) -> None:
        if not self._on:
            return
        try:
            self._take(record)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self._on = False
            warn(f"lightkeeper stopped reading torchtitan's spans: {exc!r}")

    def _take(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        name = fields.get("log_type_name")
        if not isinstance(name, str) or fields.get("task_name") is not None:
            return  # spans of asyncio tasks (RL) overlap: they do not say where the rank is
        if fields.get("log_type") == "instant":
            if name == "metric_value" and fields.get("event_name") == _TOKENS:
                self._tokens += int(fields["value"])
            return
        span, _, event = name.rpartition("_")
        if name == _OVER:
            self._close()
        elif span == "step":
            self._step(event, fields.get("step"))
        else:
            phase = "init" if span.endswith(_BUILDING) else _PHASES.get(span)
            if phase is not None and event == "start":
                self._spans.begin(phase)
            elif phase is not None and event == "end":
                self._spans.end(phase)

    def _step(self, event: str, step: Any) -> None:
        if not isinstance(step, int):
            return
        if event == "start":
            self._failed, self._tokens = False, 0
            self._source.begin_step(step)
        elif event == "error":
            self._failed = True
        elif event == "end":
            self._source.end_step(step, committed=not self._failed, tokens=self._tokens)
