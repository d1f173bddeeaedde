"""Attach with no change of code or launcher: `LIGHTKEEPER_ATTACH=1`.

torch calls the entry points of the group `torch.backends` at the end of `import torch`. Ours
does nothing unless the variable is set, and only in a process that a launcher made a rank: not
in torchrun itself, which sees what Slurm or an operator set for the ranks that it will start.

Children of a rank (spawned DataLoader workers) inherit its variables but are not ranks. So after
attaching, the request in the environment is replaced with a note that names the launcher. If an
unknown launcher attached by mistake, its ranks see that the note names another launcher than
theirs, and still attach.

`torch.multiprocessing.spawn` and Ray make a rank of a process that has imported torch already. In
a process that is neither a rank nor a launcher, its first `init_process_group` attaches instead,
with the rank that the call gives, unless its backend is `fake`. Who imports that function by name
gets ours: that comes after `import torch`. But collectives that were imported by name before the
call are not seen (see `collectives`).
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightkeeper.worker_server.harmless import guarded

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import Reporter

_WISH = "LIGHTKEEPER_ATTACH"
_DONE = "done:"
_C10D = "torch.distributed.distributed_c10d"
_INIT = "init_process_group"
"""What attached, in place of a launcher's name: its children are no ranks, whatever it sets."""
_BY_PID = "_LK_ATTACHED_PID"
"""In which process the request was fulfilled, also if it executes another program since."""


def autoload() -> None:
    """Attach if `LIGHTKEEPER_ATTACH=1` and this process is a rank; never raises."""
    if _WISH not in os.environ or not wanted():
        return
    from lightkeeper.worker_server.rank import identity  # noqa: PLC0415  every `import torch` comes here

    if identity.is_rank(os.environ, sys.orig_argv):
        _attach({})
    elif not identity.starts_ranks(identity.program_of(sys.orig_argv)):
        _attach_at_init()


def _attach(overrides: dict[str, str], by: str = "") -> None:
    from lightkeeper.worker_server.rank import identity  # noqa: PLC0415
    from lightkeeper.worker_server.rank.attach import attach  # noqa: PLC0415

    fulfil(by)
    reporter = attach(overrides)
    if by and identity.is_rays(sys.orig_argv):
        _close_with_its_groups(reporter)


def _close_with_its_groups(reporter: Reporter) -> None:
    """Ray ends all workers with status 1, whether or not they failed. It destroys their groups
    before that: a process that dies afterwards has not failed.
    """
    destroy = sys.modules[_C10D].destroy_process_group

    @functools.wraps(destroy)
    def closing(group: Any = None) -> Any:
        if group is None:
            reporter.close()
        return destroy(group)

    _exchange("destroy_process_group", destroy, closing)


def _attach_at_init() -> None:
    """Replace `init_process_group` until it makes this process a rank."""
    c10d = sys.modules.get(_C10D)
    original = getattr(c10d, _INIT, None)
    if original is None:
        return  # another torch
    signature = inspect.signature(original)
    onward: Callable[..., Any] | None = None

    @functools.wraps(original)
    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal onward
        who = {} if onward else _named_by(signature, args, kwargs)
        if who:
            untouched = getattr(c10d, _INIT) is first
            _exchange(_INIT, first, original)
            guarded(lambda: _attach(who, _INIT), None)
            # what the attach has put there; unless somebody wrapped us, whose wrapper runs already
            onward = getattr(c10d, _INIT) if untouched else original
        return (onward or original)(*args, **kwargs)

    _exchange(_INIT, original, first)


def _exchange(name: str, current: Callable[..., Any], new: Callable[..., Any]) -> None:
    """In the modules that have it by the end of `import torch`."""
    for module in map(
        sys.modules.get, (_C10D, "torch.distributed", "torch.distributed.device_mesh")
    ):
        if getattr(module, name, None) is current:
            setattr(module, name, new)


def _named_by(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, str]:
    """The variables of the rank that a call makes of this process; empty if it makes none."""
    with suppress(Exception):  # wrong arguments are torch's concern
        call = signature.bind(*args, **kwargs).arguments
        rank, size = (
            int(os.environ.get(name.upper(), "-1") if call.get(name, -1) == -1 else call[name])
            for name in ("rank", "world_size")
        )
        if wanted() and call.get("backend") != "fake" and 0 <= rank < size:
            who = {"RANK": str(rank), "WORLD_SIZE": str(size)}
            url = urlsplit(call.get("init_method") or "env://")
            if url.scheme != "env":  # where the ranks of one launch meet
                who |= {"MASTER_ADDR": url.hostname or url.path, "MASTER_PORT": str(url.port)}
            return who
    return {}


def wanted() -> bool:
    """True if the environment asks this process to attach, or asked and it did."""
    wish = os.environ.get(_WISH, "")
    if wish == "1" or (wish and os.environ.get(_BY_PID) == str(os.getpid())):
        return True
    return wish.startswith(_DONE) and wish.removeprefix(_DONE) not in (_INIT, _told_by())


def fulfil(by: str = "") -> None:
    """Withdraw the request from future child processes."""
    if os.environ.get(_WISH) and wanted():
        os.environ[_WISH] = f"{_DONE}{by or _told_by()}"
        os.environ[_BY_PID] = str(os.getpid())


def _told_by() -> str:
    from lightkeeper.worker_server.rank.identity import launcher_of  # noqa: PLC0415  wire stays light

    launcher = launcher_of(os.environ)
    return "nobody" if launcher is None else launcher.name
