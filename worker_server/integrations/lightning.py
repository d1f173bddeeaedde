"""Lightning's hooks as steps and phases, through its entry points for callbacks.

Lightning calls the factories of the groups `lightning.pytorch.callbacks_factory`,
`lightning.fabric.callbacks_factory` and, in the old package, `pytorch_lightning.callbacks_factory`
whenever a Trainer or a Fabric is created. Ours return nothing unless `LIGHTKEEPER_ATTACH=1`, and
import neither torch nor Lightning to decide that.

A step is what advances `trainer.global_step`: with gradient accumulation it covers several
batches. What Lightning does between two batches is `data`: fetching and, with several ranks, a
small broadcast. So `data` may include waiting for other ranks, and `backward` includes DDP's.
These phases must not be taken for a loop's own; the monitor does not (their source is `lightning`).

Fabric has no loop: its callback attaches, and the optimizer's hook counts the steps.
"""

from __future__ import annotations

import atexit
import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lightkeeper.worker_server import attach, autoload
from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.integrations import Spans

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import ReportSource

_STEP_PHASES = ("forward", "backward", "optimizer")
Hook = TypeVar("Hook", bound=Callable[..., None])


def lightning_callbacks() -> list[Any]:
    return _wanted("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    return _wanted("pytorch_lightning")


def fabric_callbacks() -> list[Any]:
    return [FabricCallback()] if autoload.wanted() else []


def _wanted(package: str) -> list[Any]:
    if not autoload.wanted():
        return []
    try:
        return [_callback(package)]
    except Exception as exc:  # noqa: BLE001  training continues
        warn(f"lightkeeper has no callback for {package}: {exc!r}")
        return []


def _callback(package: str) -> Any:
    """A callback of the package's own class; unpickling creates a fresh one."""
    base = importlib.import_module(f"{package}.callbacks").Callback
    callback_class = type("LightkeeperCallback", (TrainerHooks, base), {"_package": package})
    return callback_class()


def _quiet(hook: Hook) -> Hook:
    """A hook that never raises: the first failure warns once and disables all our hooks."""

    @functools.wraps(hook)
    def guarded(self: TrainerHooks, *args: Any, **kwargs: Any) -> None:
        if self.failed:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001
            self.failed = True
            warn(f"lightkeeper stopped following Lightning: {exc!r}")

    return guarded  # type: ignore[return-value]


class TrainerHooks:
    """What the callback does; Lightning's base class provides the remaining hooks."""

    _package = ""

    def __init__(self, attached: Callable[..., Any] = attach) -> None:
        super().__init__()
        self.failed = False
        self._attach = attached
        self._source: ReportSource | None = None
        self._begun: int | None = None
        self._ended_well = False

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        """A page belongs to one process: a copy starts fresh."""
        return _callback, (self._package,)

    @_quiet
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Attach, in the process that trains and with the rank that Lightning gave it."""
        if self._source is not None:
            return
        reporter = self._attach(rank=trainer.global_rank, world_size=trainer.world_size)
        self._source = source = reporter.from_source("lightning")
        self._spans = Spans(source)
        trainer.save_checkpoint = functools.partial(_save, self, trainer.save_checkpoint)
        atexit.register(lambda: reporter.close() if self._ended_well else None)

    @_quiet
    def on_fit_start(self, *_: Any) -> None:
        """A fit begins: an exit now is not a good end."""
        self._ended_well = False

    @_quiet
    def on_fit_end(self, *_: Any) -> None:
        """The fit is complete: an exit from now on is a good end."""
        self._spans.end("data")
        self._ended_well = True

    @_quiet
    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """A batch is ready; the first of a step begins the step."""
        self._spans.end("data")
        if self._begun is None and self._source is not None:
            self._begun = int(trainer.global_step)
            self._source.begin_step(self._begun)
        self._spans.begin("forward")

    @_quiet
    def on_before_backward(self, *_: Any) -> None:
        self._spans.end(*_STEP_PHASES)
        self._spans.begin("backward")

    @_quiet
    def on_after_backward(self, *_: Any) -> None:
        self._spans.end("backward")

    @_quiet
    def on_before_optimizer_step(self, *_: Any) -> None:
        self._spans.end(*_STEP_PHASES)
        self._spans.begin("optimizer")

    @_quiet
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:  # noqa: ARG002
        """The step is over if `global_step` has advanced."""
        self._spans.end(*_STEP_PHASES)
        begun = self._begun
        if begun is not None and self._source is not None and trainer.global_step > begun:
            self._begun = None
            loss = _loss(outputs, trainer.accumulate_grad_batches)
            self._source.end_step(begun, committed=True, loss=loss)
        self._spans.begin("data")

    @_quiet
    def on_validation_start(self, *_: Any) -> None:
        """Evaluation begins, perhaps in the middle of training."""
        self._spans.begin("evaluation")

    @_quiet
    def on_validation_end(self, *_: Any) -> None:
        self._spans.end("evaluation")

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    @_quiet
    def begin_checkpoint(self) -> None:
        self._spans.begin("checkpoint")

    @_quiet
    def end_checkpoint(self) -> None:
        self._spans.end("checkpoint")


def _save(hooks: TrainerHooks, save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`trainer.save_checkpoint` as a phase: Lightning has a hook before it but none after."""
    hooks.begin_checkpoint()
    try:
        return save(*args, **kwargs)
    finally:
        hooks.end_checkpoint()


def _loss(outputs: Any, batches: int) -> float | None:
    """The loss, if it is on the CPU: reading it from a GPU would wait for the GPU."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    if loss is None:
        return None
    if not isinstance(loss, float):
        device = getattr(loss, "device", None)
        if device is None or device.type != "cpu" or loss.numel() != 1:
            return None
    return float(loss) * batches  # Lightning divided it by the batches per step


class FabricCallback:
    """Attaches when Fabric has set up the first model."""

    def on_after_setup(self, fabric: Any, module: Any) -> None:  # noqa: ARG002
        try:
            attach(rank=fabric.global_rank, world_size=fabric.world_size)
        except Exception as exc:  # noqa: BLE001
            warn(f"lightkeeper is not attached: {exc!r}")
