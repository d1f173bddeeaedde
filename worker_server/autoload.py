"""Attach with no change of code or launcher: `LIGHTKEEPER_ATTACH=1`.

torch calls the entry points of the group `torch.backends` at the end of `import torch`. Ours
does nothing unless it was asked to, and only in a process that a launcher made a rank (it
has RANK). What such a process starts inherits RANK as well (DataLoader workers by spawn), but
is no rank: so the wish is withdrawn from the environment once it is fulfilled.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Attach if `LIGHTKEEPER_ATTACH=1` and this process is a rank; never raises."""
    if os.environ.get("LIGHTKEEPER_ATTACH") != "1" or "RANK" not in os.environ:
        return
    os.environ["LIGHTKEEPER_ATTACH"] = "done"
    from worker_server import attach  # noqa: PLC0415 - every `import torch` comes through here

    attach()
