"""Steps of a loop that says nothing: each step of its first optimizer is a step.

torch calls a global hook after each `Optimizer.step`, a microsecond for ours. Of several
optimizers only the first to step is counted (a GAN's critic steps more often than its
generator), and another one once that is gone or has been silent for long. A step that a
GradScaler skips, for an overflow, does not call the optimizer and is not counted.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

_SILENT = 64
"""Steps of other optimizers without one of the counted one, after which another is counted: more
than any critic makes for one of its generator's, and a few minutes of training at most."""


class StepSource(Protocol):
    """What `reporter.from_source("optimizer")` gives, as far as it is used here."""

    def step(self, step: int) -> None:
        """A step ended."""


class StepCounter:
    """The hook. Never raises: the source does not, and the rest cannot."""

    def __init__(self, source: StepSource) -> None:
        self._source = source
        self._steps = 0
        self._others = 0
        self._counted: weakref.ref[Any] | None = None

    def __call__(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:  # noqa: ARG002
        """After `optimizer.step()`."""
        counted = self._counted
        if counted is None or counted() is not optimizer:
            self._others += 1
            if counted is not None and counted() is not None and self._others < _SILENT:
                return
            self._counted = weakref.ref(optimizer)
        self._others = 0
        step = self._steps
        self._steps = step + 1
        self._source.step(step)


def count_steps(source: StepSource) -> None:
    """Count every optimizer's steps in this process from now on; torch is imported."""
    import torch  # noqa: PLC0415  only where it is there already
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    counter = StepCounter(source)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled step is traced: nothing of ours in it
            counter(optimizer, args, kwargs)

    register_optimizer_step_post_hook(after_step)
