"""How many accelerators this rank has, as far as that can be known for nothing.

For the accounts of the monitor only (GPU-seconds). CUDA is never initialised here: that would cost
seconds and memory on the device, and break a later fork. What is not clear is left unknown, and the
monitor's `--gpus-per-rank` stands in for it.

    what torch knows            devices on which this process has a context, once it has one
    CUDA_VISIBLE_DEVICES        (or HIP_, ROCR_VISIBLE_DEVICES) those named / LOCAL_WORLD_SIZE,
                                where that comes out even; without LOCAL_WORLD_SIZE only one named
    /proc/driver/nvidia/gpus    one, where the host has as many as LOCAL_WORLD_SIZE says ranks: with
                                more of them other groups may run beside this one
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from worker_server.wire import ACCELERATORS_MAX

_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DRIVER: Final = "/proc/driver/nvidia/gpus"

Listing = Callable[[], Sequence[str]]


def accelerators_from(
    environ: Mapping[str, str], listing: Listing | None = None, torch: Any = None
) -> int | None:
    """How many; None: unknown. Never raises.

    Args:
        environ: the rank's.
        listing: the host's devices by its driver; None: asks /proc.
        torch: the module, if this process has imported it; None: looks.
    """
    known = _with_context(sys.modules.get("torch") if torch is None else torch)
    if known is not None:
        return known
    ranks = _whole(environ.get("LOCAL_WORLD_SIZE", ""))
    named = next((environ[name] for name in _VISIBLE if name in environ), None)
    if named is not None:
        return _share(_visible(named), ranks)
    devices = len((listing or _listing)())
    return 1 if devices and devices == (ranks or 1) else None


def _with_context(torch: Any) -> int | None:
    """Devices on which this process has a context already; asking makes none."""
    try:
        if not torch.cuda.is_initialized():
            return None
        has = torch._C._cuda_hasPrimaryContext
        return sum(bool(has(index)) for index in range(torch.cuda.device_count())) or None
    except Exception:  # noqa: BLE001 - no torch, none with CUDA, or another version
        return None


def _share(devices: int, ranks: int | None) -> int | None:
    if devices == 0:
        return 0
    if ranks is None:
        return 1 if devices == 1 else None
    return devices // ranks if devices % ranks == 0 else None


def _visible(text: str) -> int:
    """How many devices a list names; CUDA ignores all from the first on that is none."""
    count = 0
    for word in text.split(",")[:ACCELERATORS_MAX]:
        name = word.strip()
        if not (name.isascii() and name.isdigit()) and not name.startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 10_000 else None


def _listing() -> Sequence[str]:
    try:
        return os.listdir(_DRIVER)
    except OSError:
        return ()
