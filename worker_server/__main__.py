"""The command line `python -m lightkeeper.worker_server`: attach, then become the script.

A new interpreter replaces this one and runs the script (exec: same pid, same Python options), so
that the script looks the same, inside and out, as under plain python. What attaches is
`rank/boot/sitecustomize.py`, which comes first in that interpreter's PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping, Sequence
from typing import Final

from lightkeeper.worker_server import guarded

_USAGE_STATUS = 2
_BOOT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank", "boot")

_OPTIONS = (
    ("--monitor", "URL", "LIGHTKEEPER_MONITOR",
     "the monitor, http(s)://host:port; of two, both: A,B"),
    ("--token-file", "FILE", "LIGHTKEEPER_TOKEN_FILE", "the secret shared with it"),
    ("--job", "NAME", "LIGHTKEEPER_JOB", "name of the job"),
    ("--run", "NAME", "LIGHTKEEPER_RUN", "of this start; equal on all its hosts"),
    ("--group", "NAME", "REPLICA_GROUP", "stable name of this replica group"),
    ("--host", "NAME", "LIGHTKEEPER_HOST", "this node as the scheduler names it"),
    ("--admission", "WORD", "LIGHTKEEPER_ADMISSION", "of quarantined hosts: off, warn, refuse"),
    ("--bind", "ADDRESS", "LIGHTKEEPER_BIND", "where the WorkerServer listens"),
    ("--port-base", "PORT", "LIGHTKEEPER_PORT_BASE", "port of group rank 0; others follow"),
    ("--run-dir", "DIR", "LIGHTKEEPER_RUN_DIR", "pages, sockets and logs; ours alone"),
    ("--linger", "SECONDS", "LIGHTKEEPER_LINGER_S", "how long a dead rank still answers"),
)  # fmt: skip
"""Flag, metavar, environment variable, help."""
_NO_TORCH = "--no-torch-hook"
_QUORUM_S: Final = 60
"""TorchFT's own quorum timeout."""

_HELP = f"""\
usage: python -m lightkeeper.worker_server [OPTIONS] SCRIPT [ARGS ...]
       python -m lightkeeper.worker_server [OPTIONS] -m MODULE [ARGS ...]
       python -m lightkeeper.worker_server [OPTIONS] -c CODE [ARGS ...]

Runs a training script with a WorkerServer beside it. The script needs no line of ours, and ends
as it ends without us: same output, same tracebacks, same exit status.

options, each in place of the variable behind it:
{
    "".join(
        f"  {f'{flag} {value}':<19} {about:<39} {variable}{chr(10)}"
        for flag, value, variable, about in _OPTIONS
    )
}  {_NO_TORCH:<19} {"state, stacks and liveness only":<39} LIGHTKEEPER_TORCH=0
  -h, --help          this text

There is no option for the token itself: everybody on the host can read a command line.

examples:
  torchrun --nproc-per-node 8 -m lightkeeper.worker_server train.py --lr 1e-4
  torchrun --nproc-per-node 8 -m lightkeeper.worker_server --monitor http://head:8470 -m pkg.train
  srun python -m lightkeeper.worker_server --token-file ~/.lightkeeper-token train.py
  python -m lightkeeper.worker_server train.py

It goes inside of the launcher, beside each rank. The URL of each WorkerServer is in the run
directory: cat /dev/shm/lightkeeper-*/*.json, then curl that URL.
Who the rank is comes from the launcher's variables (torchrun, Slurm, MPI, Kubernetes): see
docs/integrations.md.
"""


class _UsageError(ValueError):
    """A command line that cannot be parsed."""


def main(argv: Sequence[str]) -> int:
    """Become the script, attached; returns only for help or a usage error."""
    try:
        settings, rest = _options(argv)
    except _UsageError as exc:
        sys.stderr.write(f"python -m lightkeeper.worker_server: {exc} (see --help)\n")
        return _USAGE_STATUS
    if rest[:1] == ["--help"] or not rest:
        (sys.stdout if rest else sys.stderr).write(_HELP)
        return 0 if rest else _USAGE_STATUS
    os.environ.update(settings)
    return _become(rest, _python_flags(argv))


def _options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Settings from the leading options, and the rest: what to run, with its arguments."""
    settings: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        flag, equals, value = words.pop(0).partition("=")
        if flag in ("-h", "--help"):
            return {}, ["--help"]
        if flag == "--":
            break
        if flag == _NO_TORCH and not equals:
            settings["LIGHTKEEPER_TORCH"] = "0"
            continue
        variable = _variable_of(flag)
        if not equals and not words:
            raise _UsageError(f"{flag} needs a value")
        settings[variable] = value if equals else words.pop(0)
    if words in (["-m"], ["-c"]):
        raise _UsageError(f"{words[0]} needs {'a module' if words[0] == '-m' else 'code'}")
    return settings, words


def _variable_of(flag: str) -> str:
    if flag == "--token":
        raise _UsageError(
            "a token on a command line is no secret: --token-file or LIGHTKEEPER_TOKEN"
        )
    for option, _, variable, _ in _OPTIONS:
        if option == flag:
            return variable
    raise _UsageError(f"no such option: {flag}")


def _become(words: list[str], flags: list[str]) -> int:
    def launches() -> bool:
        from lightkeeper.worker_server.rank import identity  # noqa: PLC0415  not for --help

        return name != "-c" and identity.starts_ranks(name)

    name = words[1] if words[0] == "-m" else words[0]
    launcher = guarded(launches, None)
    if launcher is not None:
        _ask_again(os.environ)
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


def _ask_again(environ: MutableMapping[str, str]) -> None:
    """Have TorchFT ask each second for a quorum whose answer was lost, unless the user chose.

    A manager whose request fails (gate or Lighthouse replaced, a connection cut) reports it to no
    rank, and they wait until their quorum timeout ends the group. It waits timeout / (retries + 1)
    before it asks again (tried with TorchFT 0.2.0).
    """
    try:
        timeout_s = round(float(environ.get("TORCHFT_QUORUM_TIMEOUT_SEC") or _QUORUM_S))
    except (ValueError, OverflowError):
        timeout_s = _QUORUM_S
    environ.setdefault("TORCHFT_QUORUM_RETRIES", str(max(1, timeout_s - 1)))


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
