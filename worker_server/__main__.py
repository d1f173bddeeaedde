"""`python -m worker_server SCRIPT [ARGS]`: run a script, attached, without changing it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

_HELP = """\
usage: python -m worker_server [-m MODULE | SCRIPT] [ARGS ...]

Runs a training script with a WorkerServer beside it. The script needs no line of ours, and ends
as it ends without us: same output, same exit status.

examples:
  torchrun --nproc-per-node 8 -m worker_server train.py --lr 1e-4
  torchrun --nproc-per-node 8 -m worker_server -m trainer.train --steps 100
  python -m worker_server train.py

Who the rank is and where the monitor is comes from the environment: see docs/attach.md.
"""
_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Attach, then become the script; only a wrong command line returns."""
    if not argv or argv[0] in ("-h", "--help"):
        (sys.stdout if argv else sys.stderr).write(_HELP)
        return 0 if argv else _USAGE
    as_module = argv[0] == "-m"
    rest = list(argv[1:]) if as_module else list(argv)
    if not rest:
        sys.stderr.write("python -m worker_server: -m needs a module (see --help)\n")
        return _USAGE
    if not as_module and not Path(rest[0]).exists():
        sys.stderr.write(f"python -m worker_server: no such script: {rest[0]}\n")
        return _USAGE
    from worker_server import attach  # noqa: PLC0415 - not for --help

    attach()
    sys.argv = rest
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(rest[0]).resolve().parent)  # as python itself does
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
