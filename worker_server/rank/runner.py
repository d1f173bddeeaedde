"""The command line `python -m worker_server`: attach, then become the script.

What the script sees and what it leaves behind is what plain python gives: `__main__` is the
script's module and holds nothing of ours (pickle and multiprocessing look there), `sys.argv` and
`sys.path` are the script's, a traceback begins in the script, and it ends with the same status.
"""

from __future__ import annotations

import os
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, TracebackType

_USAGE_STATUS = 2
_OURS = (
    __file__,
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "__main__.py"),
)
_KEPT = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__")


_OPTIONS = (
    ("--monitor", "URL", "LIGHTKEEPER_MONITOR",
     "the monitor, http(s)://host:port; of two, both: A,B"),
    ("--token-file", "FILE", "LIGHTKEEPER_TOKEN_FILE", "the secret shared with it"),
    ("--job", "NAME", "LIGHTKEEPER_JOB", "name of the job"),
    ("--group", "NAME", "REPLICA_GROUP", "stable name of this replica group"),
    ("--host", "NAME", "LIGHTKEEPER_HOST", "this node as the scheduler names it"),
    ("--admission", "WORD", "LIGHTKEEPER_ADMISSION", "of quarantined hosts: off, warn, refuse"),
    ("--bind", "ADDRESS", "LIGHTKEEPER_BIND", "where the WorkerServer listens"),
    ("--port-base", "PORT", "LIGHTKEEPER_PORT_BASE", "port of group rank 0; others follow"),
    ("--run-dir", "DIR", "LIGHTKEEPER_RUN_DIR", "pages, sockets and logs; ours alone"),
    ("--linger", "SECONDS", "LIGHTKEEPER_LINGER_S", "how long a dead rank still answers"),
)  # fmt: skip
"""Flag, what stands for its value in the help, the variable behind it, and the help."""
_NO_TORCH = "--no-torch-hook"

_HELP = f"""\
usage: python -m worker_server [OPTIONS] SCRIPT [ARGS ...]
       python -m worker_server [OPTIONS] -m MODULE [ARGS ...]
       python -m worker_server [OPTIONS] -c CODE [ARGS ...]

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
  torchrun --nproc-per-node 8 -m worker_server train.py --lr 1e-4
  torchrun --nproc-per-node 8 -m worker_server --monitor http://head:8470 -m pkg.train
  srun python -m worker_server --token-file ~/.lightkeeper-token train.py
  python -m worker_server train.py

It goes inside of the launcher, beside each rank. The URL of each WorkerServer is in the run
directory: cat /dev/shm/lightkeeper-*/*.json, then curl that URL.
Who the rank is comes from the launcher's variables (torchrun, Slurm, MPI, Kubernetes): see
docs/attach.md.
"""


class _UsageError(ValueError):
    """A command line that cannot be understood."""


def main(argv: Sequence[str]) -> int:
    """Attach, then become the script; only a wrong command line returns."""
    try:
        settings, rest = _options(argv)
    except _UsageError as exc:
        sys.stderr.write(f"python -m worker_server: {exc} (see --help)\n")
        return _USAGE_STATUS
    if rest[:1] == ["--help"] or not rest:
        (sys.stdout if rest else sys.stderr).write(_HELP)
        return 0 if rest else _USAGE_STATUS
    os.environ.update(settings)
    return _become(rest)


def _options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Settings of the options in front, and the rest: what to run, with its arguments."""
    settings: dict[str, str] = {}
    words = list(argv)
    variables = {flag: variable for flag, _, variable, _ in _OPTIONS}
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        flag, equals, value = words.pop(0).partition("=")
        if flag in ("-h", "--help"):
            return {}, ["--help"]
        if flag == "--":
            break
        if flag == _NO_TORCH and not equals:
            settings["LIGHTKEEPER_TORCH"] = "0"
        elif flag == "--token":
            raise _UsageError(
                "a token on a command line is no secret: --token-file or LIGHTKEEPER_TOKEN"
            )
        elif flag not in variables:
            raise _UsageError(f"no such option: {flag}")
        elif not equals and not words:
            raise _UsageError(f"{flag} needs a value")
        else:
            settings[variables[flag]] = value if equals else words.pop(0)
    if words[:1] in (["-m"], ["-c"]) and len(words) == 1:
        raise _UsageError(f"{words[0]} needs {'a module' if words[0] == '-m' else 'code'}")
    return settings, words


def _become(words: list[str]) -> int:
    kind = words.pop(0) if words[0] in ("-m", "-c") else ""
    try:
        program = _program(kind, words[0])
    except OSError as exc:  # said as python says it, and before anything is started
        why = f"[Errno {exc.errno}] {exc.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {exc.filename!r}: {why}\n")
        return _USAGE_STATUS
    from worker_server import attach  # noqa: PLC0415
    from worker_server.rank import identity  # noqa: PLC0415  not for --help

    if kind != "-c" and identity.starts_ranks(words[0]):
        os.environ["LIGHTKEEPER_ATTACH"] = "1"  # the ranks that it starts, not itself
    else:
        attach()
    sys.argv = [kind or words[0], *words[1:]]
    return _run(program)


def _program(kind: str, name: str) -> Callable[[], None]:
    """What to run, once sys.path begins where the script expects it.

    Raises:
        OSError: there is no such script, or it may not be read.
    """
    if kind == "-m":
        return lambda: _run_as_main(name)
    if kind == "-c":
        _set_path("")
        return lambda: _exec(compile(name, "<string>", "exec", dont_inherit=True))
    # Not pathlib: python neither resolves nor normalises what it calls __file__.
    path = os.path.join(os.getcwd(), name)
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_path(path)
        return lambda: _run_as_main("__main__")
    with open(path, "rb") as file:
        source = file.read()
    _set_path(os.path.dirname(os.path.realpath(path)))
    return lambda: _exec(compile(source, path, "exec", dont_inherit=True), path)


def _set_path(first: str) -> None:
    if not sys.flags.safe_path:  # -P: python adds nothing in front
        sys.path[0] = first


def _run(program: Callable[[], None]) -> int:
    namespace = sys.modules["__main__"].__dict__
    for name in [name for name in namespace if name not in _KEPT]:
        del namespace[name]
    namespace["__annotations__"] = {}
    try:
        program()
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _from_the_script_on(sys.excepthook)
        raise
    return 0


def _run_as_main(module: str) -> None:
    """The function that `python -m` itself calls: private, and the only one of its effect."""
    run: Callable[[str, bool], object] = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(module, module != "__main__")


def _exec(code: CodeType, path: str | None = None) -> None:
    namespace = sys.modules["__main__"].__dict__
    namespace.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None)
    if path is not None:
        namespace.update(
            __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
        )
    exec(code, namespace)  # noqa: S102  the script is what we were asked to run


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _from_the_script_on(hook: _Hook) -> _Hook:
    """The hook in place (the script's own, perhaps), told a traceback without our frames."""

    def shown(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        last, at = None, trace
        while at is not None:
            if at.tb_frame.f_code.co_filename in _OURS:
                last = at
            at = at.tb_next
        rest = trace if last is None else last.tb_next
        exc.__traceback__ = rest
        hook(kind, exc, rest)

    return shown
