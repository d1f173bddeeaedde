"""The command line `python -m lightkeeper.worker_server`: attach, then become the script.

A new interpreter replaces this one and runs the script (exec: same pid, same Python options), so
that the script looks the same, inside and out, as under plain python. What attaches is
`rank/boot/sitecustomize.py`, which comes first in that interpreter's PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Final

from lightkeeper.worker_server.harmless import guarded

_USAGE_STATUS = 2
_BOOT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank", "boot")

_HELP = """\
usage: python -m lightkeeper.worker_server SCRIPT [ARGS ...]
       python -m lightkeeper.worker_server -m MODULE [ARGS ...]
       python -m lightkeeper.worker_server -c CODE [ARGS ...]

Runs a training script with a WorkerServer beside it. The script needs no line of ours, and ends
as it ends without us: same output, same tracebacks, same exit status. What it may know, such as
LIGHTKEEPER_MONITOR and LIGHTKEEPER_TOKEN_FILE, is in variables: see docs/configuration.md.

examples:
  torchrun --nproc-per-node 8 -m lightkeeper.worker_server train.py --lr 1e-4
  torchrun --nproc-per-node 8 -m lightkeeper.worker_server -m pkg.train
  LIGHTKEEPER_MONITOR=http://head:8470 srun python -m lightkeeper.worker_server train.py

It goes inside of the launcher, beside each rank. The URL of each WorkerServer is in the run
directory: cat /dev/shm/lightkeeper-*/*.json, then curl that URL.
Who the rank is comes from the launcher's variables (torchrun, Slurm, MPI, Kubernetes): see
docs/integrations.md.
"""


def main(argv: Sequence[str]) -> int:
    """Become the script, attached; returns only for help or a usage error."""
    words = list(argv)
    if words[:1] in (["-h"], ["--help"]) or not words:
        (sys.stdout if words else sys.stderr).write(_HELP)
        return 0 if words else _USAGE_STATUS
    wrong = ""
    if words in (["-m"], ["-c"]):
        wrong = f"{words[0]} needs {'a module' if words[0] == '-m' else 'code'}"
    elif words[0].startswith("-") and words[0] not in ("-m", "-c"):
        wrong = f"no such option: {words[0].partition('=')[0]}"
    if wrong:
        sys.stderr.write(f"python -m lightkeeper.worker_server: {wrong} (see --help)\n")
        return _USAGE_STATUS
    return _become(words, _python_flags(argv))


def _become(words: list[str], flags: list[str]) -> int:
    def launches() -> bool:
        from lightkeeper.worker_server.rank import identity, retries  # noqa: PLC0415  not for --help

        os.environ.update(retries.quorum_retries(os.environ))
        return name != "-c" and identity.starts_ranks(name)

    name = words[1] if words[0] == "-m" else words[0]
    launcher = guarded(launches, None)
    if launcher is None:
        pass  # it runs without us
    elif launcher:
        os.environ["LIGHTKEEPER_ATTACH"] = "1"  # for the ranks it starts, not itself
    elif sys.flags.ignore_environment or sys.flags.no_site:
        sys.stderr.write(
            "python -m lightkeeper.worker_server: not attached, for python has -E, -I or -S\n"
        )
    else:
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_BOOT, path]))
    os.execv(sys.executable, [sys.executable, *flags, *words])  # noqa: S606  the user's command


def _python_flags(argv: Sequence[str]) -> list[str]:
    """The options between python and `-m lightkeeper.worker_server`."""
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(argv)]
    if words and not words[-1].startswith("-"):
        words.pop()  # our name
    if words and (module := re.fullmatch(r"(-[a-zA-Z]*)m.*", words[-1])):
        words[-1:] = [module[1]] if module[1] != "-" else []
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
