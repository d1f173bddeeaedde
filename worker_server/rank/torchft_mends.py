"""Mends of TorchFT's own bugs, at attach, where LIGHTKEEPER_MEND_TORCHFT=1 asks for them.

Only a function whose source is one of those that were tried is replaced. The numbers of the bugs,
and what each costs: docs/versions.md.

1. In TorchFT 0.2.0 the hook of `DistributedDataParallel` asserts that an all-reduce has a result.
   One that failed, because a peer died or was evicted, has none, so the survivor dies as well. The
   Manager knows of the failure and will not commit this step: DDP gets its bucket back as it is.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from typing import Any, Final

import torch

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank.torch_hooks import when_imported

_DDP: Final = "torchft.ddp"
_TRIED: Final = "5827dbfc749c31fd8732e5b07a27ec2e3cce31b8c0b0a2891e047d5fb66baed3"
"""SHA-256 of the hook's source in TorchFT 0.2.0."""


def install() -> None:
    """Mend TorchFT when it is imported, or now."""
    when_imported(_DDP, _mend_ddp)


def _mend_ddp() -> None:
    """Never raises: it may run inside an import."""
    try:
        ddp = sys.modules[_DDP].DistributedDataParallel
        hook = ddp._comm_hook
        if hook is _comm_hook:
            return
        source = inspect.getsource(hook)
        if hashlib.sha256(source.encode()).hexdigest() == _TRIED:
            # torch looks at the annotations of a hook
            ddp._comm_hook = staticmethod(functools.wraps(hook)(_comm_hook))
        else:
            warn(f"lightkeeper mends nothing: this {_DDP} is not that of TorchFT 0.2.0")
    except Exception as exc:  # noqa: BLE001  training continues with the bug
        warn(f"lightkeeper cannot mend TorchFT: {exc!r}")


def _comm_hook(manager: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    work = manager.allreduce(bucket.buffer())
    work.wait()
    result = getattr(work.get_future(), "_fut", None)
    if result is None:
        result = torch.futures.Future[torch.Tensor]()
        result.set_result(bucket.buffer())
    return result
