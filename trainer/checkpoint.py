"""The job's state on disk, by torch's distributed checkpoint (DCP).

TorchFT heals a group from its peers, so a checkpoint is for the day on which none is left. Every
group writes its own, `DIR/GROUP/step-N`, each rank its own part; a start with `--resume` takes
the newest whole one of any group, whichever number of ranks wrote it. Two are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.group import Intra

_KEPT: Final = 2
_NAME: Final = re.compile(r"step-(\d+)")
_CLOCK: Final = "clock"
"""Two numbers: committed steps, and batches committed by all groups, as TorchFT counts them."""


def save(  # noqa: PLR0917 - each is another thing
    folder: Path,
    step: int,
    batches: int,
    tensors: Mapping[str, Tensor],
    intra: Intra | None,
    rank: int,
) -> Path:
    """Write the state of `step` into `folder`; every rank of the group calls this.

    A reader sees all of it under its name, or nothing: it is renamed when every rank has written.
    """
    from torch.distributed.checkpoint import state_dict_saver as dcp  # noqa: PLC0415 - a second

    done = folder / f"step-{step}"
    draft = folder / f".draft-step-{step}"
    if rank == 0:
        shutil.rmtree(draft, ignore_errors=True)
    _meet(intra)
    dcp.save(
        {**tensors, _CLOCK: torch.tensor([step, batches])},
        checkpoint_id=str(draft),
        no_dist=intra is None,
    )
    _meet(intra)
    if rank == 0:
        shutil.rmtree(done, ignore_errors=True)
        draft.rename(done)
        _forget_old(folder)
    _meet(intra)
    return done


def newest(directory: Path) -> Path | None:
    """The newest whole checkpoint of any group in `directory`."""
    found = [path for path in directory.glob("*/step-*") if _NAME.fullmatch(path.name)]
    return max(found, key=lambda path: (_step(path), path.name), default=None)


def load(path: Path, tensors: Mapping[str, Tensor], intra: Intra | None) -> tuple[int, int]:
    """Read `path` into `tensors`, in place; the committed steps and batches that it holds.

    What does not fit this model ends the process with one line.
    """
    from torch.distributed.checkpoint import state_dict_loader as dcp  # noqa: PLC0415

    clock = torch.zeros(2, dtype=torch.int64)
    wanted: dict[str, Any] = {**tensors, _CLOCK: clock}
    try:
        dcp.load(wanted, checkpoint_id=str(path), no_dist=intra is None)
    except Exception as error:  # noqa: BLE001 - DCP wraps whatever a rank met, by rank
        sys.exit(f"trainer: cannot resume from {path}: {_last_line(error)}")
    step, batches = (int(number) for number in clock)
    return step, batches


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def _forget_old(folder: Path) -> None:
    whole = sorted((p for p in folder.glob("step-*") if _NAME.fullmatch(p.name)), key=_step)
    for path in whole[:-_KEPT]:
        # Renamed first: half of a checkpoint must not stand under a name that is read.
        gone = path.with_name(f".gone-{path.name}-{os.getpid()}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _meet(intra: Intra | None) -> None:
    if intra is not None:
        dist.barrier(group=intra.metrics)
