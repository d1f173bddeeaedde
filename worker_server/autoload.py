"""Attach with no change of code or launcher: `LIGHTKEEPER_ATTACH=1`.

torch calls the entry points of the group `torch.backends` at the end of `import torch`. Ours
does nothing unless the variable is set, and only in a process that a launcher made a rank: not
in torchrun itself, which sees what Slurm or an operator set for the ranks that it will start.

Children of a rank (spawned DataLoader workers) inherit its variables but are not ranks. So after
attaching, the request in the environment is replaced with a note that names the launcher. If an
unknown launcher attached by mistake, its ranks see that the note names another launcher than
theirs, and still attach.
"""

from __future__ import annotations

import os
import sys

_WISH = "LIGHTKEEPER_ATTACH"
_DONE = "done:"
_fulfilled_in = 0
"""Pid of the process in which the request was fulfilled; a forked child has another."""


def autoload() -> None:
    """Attach if `LIGHTKEEPER_ATTACH=1` and this process is a rank; never raises."""
    if _WISH not in os.environ or not wanted():
        return
    from lightkeeper.worker_server.rank import identity  # noqa: PLC0415  every `import torch` comes here

    if identity.is_rank(os.environ, sys.orig_argv):
        from lightkeeper.worker_server.rank.attach import attach  # noqa: PLC0415

        fulfil()
        attach()


def wanted() -> bool:
    """True if the environment asks this process to attach, or asked and it did."""
    wish = os.environ.get(_WISH, "")
    if wish == "1" or _fulfilled_in == os.getpid():
        return True
    return wish.startswith(_DONE) and wish.removeprefix(_DONE) != _told_by()


def fulfil() -> None:
    """Withdraw the request from future child processes."""
    global _fulfilled_in  # noqa: PLW0603  one process is one rank
    if os.environ.get(_WISH) and wanted():
        os.environ[_WISH] = f"{_DONE}{_told_by()}"
        _fulfilled_in = os.getpid()


def _told_by() -> str:
    from lightkeeper.worker_server.rank.identity import launcher_of  # noqa: PLC0415  wire stays light

    launcher = launcher_of(os.environ)
    return "nobody" if launcher is None else launcher.name
