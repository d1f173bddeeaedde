"""Attach with no change of code or launcher: `LIGHTKEEPER_ATTACH=1`.

torch calls the entry points of the group `torch.backends` at the end of `import torch`. Ours
does nothing unless it was asked to, and only in a process that a launcher made a rank: not in
torchrun itself, which sees what Slurm or an operator set for the ranks that it will start.

What a rank starts inherits its variables as well (DataLoader workers by spawn), but is no rank.
So the wish is withdrawn from the environment once it is fulfilled, with a note for whom: should
a launcher that we do not know have taken the wish for itself, its ranks, told by another launcher
than it was, still have theirs.
"""

from __future__ import annotations

import os
import sys

_WISH = "LIGHTKEEPER_ATTACH"
_DONE = "done:"
_fulfilled_in = 0
"""The process in which this module fulfilled the wish; a forked child has another pid."""


def autoload() -> None:
    """Attach if `LIGHTKEEPER_ATTACH=1` and this process is a rank; never raises."""
    if _WISH not in os.environ or not wanted():
        return
    from worker_server.rank import identity  # noqa: PLC0415  every `import torch` comes here

    if identity.is_rank(os.environ, sys.orig_argv):
        from worker_server.rank.attach import attach  # noqa: PLC0415

        fulfil()
        attach()


def wanted() -> bool:
    """Whether the environment asks for an attach of this process, or asked and had it."""
    wish = os.environ.get(_WISH, "")
    if wish == "1" or _fulfilled_in == os.getpid():
        return True
    return wish.startswith(_DONE) and wish.removeprefix(_DONE) != _told_by()


def fulfil() -> None:
    """Withdraw the wish from what this process will start."""
    global _fulfilled_in  # noqa: PLW0603  one process is one rank
    if os.environ.get(_WISH) and wanted():
        os.environ[_WISH] = f"{_DONE}{_told_by()}"
        _fulfilled_in = os.getpid()


def _told_by() -> str:
    from worker_server.rank.identity import launcher_of  # noqa: PLC0415  wire stays light

    launcher = launcher_of(os.environ)
    return "nobody" if launcher is None else launcher.name
