"""Whether gradients are finite, without a call of the user's: a look at what TorchFT averages.

What is given to `Manager.allreduce` is looked at before it goes (`local`), and some of it again at
the commit vote (`exchanged`): who was first is known only before the exchange.
A look is at 64 numbers, so a NaN in a few of a large tensor may pass once; what a loss brings is in
all of them. Eight tensors are looked at, and all where that takes less than 0.3 % of a step (5 us
each, 100 where caches are cold); of more, each attempt looks at others.

Not looked at: tensors on an accelerator (to read one makes the rank wait, or needs a copy and an
event in its stream), small ones (metrics may hold an Inf for good reasons), subclasses of Tensor,
and anything once a GradScaler is used, which makes an Inf on purpose. `StepState.gradients_watched`
says whether there is a watch. `LIGHTKEEPER_GRADIENTS=0` switches it off.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final, TypeGuard

import torch

try:
    import numpy as np

    _numpy = True
except ImportError:  # torch goes without
    _numpy = False

from worker_server.complaint import complain
from worker_server.page import layout
from worker_server.page.writer import PageWriter
from worker_server.soundness import LOCAL, Soundness

ENVIRONMENT: Final = "LIGHTKEEPER_GRADIENTS"
_SAMPLE: Final = 64
"""Numbers of a tensor; through numpy, which lets no other thread have the GIL meanwhile."""
_LEAST: Final = 1024
_LOOKS: Final = 8
"""In an attempt, however short it is, before the exchange."""
_LOOKS_AFTER: Final = 2
_SHARE: Final = 0.003
"""Of the time between two votes that looks may take, in CPU: waits for a core are nobody's cost."""
_NUMPY: Final = (torch.float32, torch.float64, torch.float16)
_EXCHANGED: Final = layout.PLACES[-1]


class GradientWatch:
    """Looks, and tells `Soundness`. Never raises, and keeps no tensor alive."""

    def __init__(self, soundness: Soundness, page: PageWriter) -> None:
        self._soundness = soundness
        self._page = page
        self._on = True
        self._calls = self._looks = self._spent_ns = self._turn = 0
        self._every = self._most = _LOOKS
        self._voted_ns = perf_counter_ns()
        self._given: list[weakref.ref[torch.Tensor]] = []

    def give(self, tensor: object) -> None:
        """The rank gives this tensor to the others now."""
        if not self._on:
            return
        try:
            if not _usable(tensor):
                return
            call, self._calls = self._calls, self._calls + 1
            if (call + self._turn) % self._every or self._looks >= self._most:
                return
            self._look(tensor, LOCAL)
            if not self._given:
                self._page.watch_gradients(on=True)
            if len(self._given) < _LOOKS_AFTER:
                self._given.append(weakref.ref(tensor))
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.stop(f"lightkeeper does not look at gradients any more: {exc!r}")

    def vote(self) -> None:
        """The rank votes on the commit: whatever it gave has come back."""
        if not self._on:
            return
        try:
            for given in self._given:
                if (tensor := given()) is not None:
                    self._look(tensor, _EXCHANGED)
        except Exception as exc:  # noqa: BLE001
            self.stop(f"lightkeeper does not look at gradients any more: {exc!r}")
        if self._looks:
            now_ns = perf_counter_ns()
            allowed_ns = _SHARE * (now_ns - self._voted_ns)
            self._voted_ns = now_ns
            self._most = max(_LOOKS, int(allowed_ns * (self._looks - 1) / max(1, self._spent_ns)))
            self._every = -(-self._calls // self._most) or 1
        self._turn += 1
        self._calls = self._looks = self._spent_ns = 0
        self._given.clear()

    def stop(self, why: str | None = None) -> None:
        """Look at nothing any more."""
        if self._on:
            self._on = False
            self._given.clear()
            self._page.watch_gradients(on=False)
            if why is not None:
                complain(why, stacklevel=5)

    def _look(self, tensor: torch.Tensor, where: str) -> None:
        began_ns = thread_time_ns()
        self._soundness.look(None, 0.0 if is_finite(tensor) else float("nan"), where)
        if self._looks:  # the first finds cold caches, which none after it pays for
            self._spent_ns += thread_time_ns() - began_ns
        self._looks += 1


def _usable(tensor: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a large plain tensor on the CPU."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return False
    if not tensor.is_cpu or not tensor.is_floating_point() or tensor.numel() < _LEAST:
        return False
    if tensor.layout is not torch.strided or torch.compiler.is_compiling():
        return False
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def is_finite(tensor: object) -> bool | None:
    """Whether a sample of a large plain tensor on the CPU is finite; None for any other."""
    if not _usable(tensor):
        return None
    step = tensor.numel() // _SAMPLE
    if _numpy and tensor.dtype in _NUMPY and tensor.is_contiguous():
        numbers = (tensor.detach() if tensor.requires_grad else tensor).numpy().reshape(-1)
        return bool(np.isfinite(numbers[::step]).all())
    sample = tensor.detach().as_strided((_SAMPLE,), (step,))
    return bool((sample * 0).sum().item() == 0)  # of a NaN or an Inf it is a NaN


def mind_scalers(stop: Callable[[], None]) -> None:
    """Call this once a GradScaler scales: its overflows are no fault."""
    original = torch.amp.GradScaler.scale

    @functools.wraps(original)
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_enabled", True):
            stop()
        return original(self, *args, **kwargs)

    torch.amp.GradScaler.scale = scale  # type: ignore[method-assign]
