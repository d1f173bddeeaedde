"""Other people's analysers, asked about the same dumps.

Each runs as its users run it: the command's own `main` on a directory of pickles, in a process of
its own with a time limit. torchfrtrace prints text; what it accuses is read from that text in two
ways, because it says more than one thing: its first complaint only, and all of them together.
NVIDIA's CollectiveAnalyzer (nvidia-resiliency-ext) prints a table of process groups with the ranks
that it misses in each, and calls all of them hanging. It is asked where it is installed:

    pip download --no-deps --only-binary :all: --platform manylinux_2_39_x86_64 \\
        --python-version 3.11 nvidia-resiliency-ext==0.6.0
    unzip nvidia_resiliency_ext-0.6.0-*.whl -d nvrx && make scoreboard PYTHONPATH=nvrx
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
PREFIX = "nccl_trace_rank_"
NVRX = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
NVRX_COLUMNS = ("PGID", "Process Group Desc", "Op Type", "Size", "Dtype", "Missing Ranks")


@dataclass(frozen=True)
class Answer:
    """What a tool said of one set of dumps."""

    accused: frozenset[int]
    kinds: frozenset[str] = frozenset()
    error: str = ""
    """Why it gave no answer at all."""
    alarms: int = 0
    """Faults it reported, with culprits or without."""


def complaints(text: str) -> list[set[int]]:
    """Ranks that torchfrtrace names, complaint by complaint."""
    out: list[set[int]] = []
    for line in text.splitlines():
        if "missing ranks: {" in line:
            out.append({int(rank) for rank in re.findall(r"\d+", line.split("missing ranks:")[1])})
        elif "error msg:" in line:
            out.append({int(rank) for rank in re.findall(r"Culprit rank (\d+)", line)})
        elif "Input/output mismatch in the collective" in line:
            out.append(set())
    return out


def readings(result: dict[str, str]) -> tuple[Answer, Answer]:
    """Its first complaint, and all of them."""
    blamed = complaints(result["text"])
    if not blamed and result["error"]:
        nothing = Answer(frozenset(), error=result["error"])
        return nothing, nothing
    first = frozenset(blamed[0]) if blamed else frozenset()
    every = frozenset(rank for ranks in blamed for rank in ranks)
    return Answer(first, alarms=len(blamed)), Answer(every, alarms=len(blamed))


def missed(result: dict[str, str]) -> Answer:
    """The ranks that NVIDIA's table calls missing."""
    ranks: set[int] = set()
    groups, inside = 0, False
    for line in result["text"].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[0].endswith("PGID") and cells[-1] == "Missing Ranks":
            inside = True
        elif inside and len(cells) == len(NVRX_COLUMNS):
            groups += 1
            ranks |= {int(rank) for rank in re.findall(r"\d+", cells[-1])}
    if not groups and result["error"]:
        return Answer(frozenset(), error=result["error"])
    return Answer(frozenset(ranks), alarms=groups)


def has_nvrx() -> bool:
    """Whether NVIDIA's analyser is there; versions before 0.5 have none."""
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        return False
    return importlib.util.find_spec(NVRX) is not None


class Rival:
    """A process that has imported a tool, and forks for each directory."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.corpus.rivals", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, folder: Path) -> dict[str, str]:
        """`text` it printed, and `error` if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(folder, file=self._process.stdin, flush=True)
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve(name: str) -> None:
    """Answer directories from stdin, one line each."""
    answer = _nvrx() if name == "nvrx" else _torchfrtrace()
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(answer(Path(line.strip()))), file=out, flush=True)


def _torchfrtrace() -> Callable[[Path], dict[str, str]]:
    from torch.distributed.flight_recorder import fr_trace

    def answer(folder: Path) -> dict[str, str]:
        options = ["-p", PREFIX, str(folder)]
        said = _forked(lambda: fr_trace.main(options), folder)
        if "Missing dump files" in said["error"]:
            options.append("--allow-incomplete-ranks")
            said = _forked(lambda: fr_trace.main(options), folder)
        return said

    return answer


def _nvrx() -> Callable[[Path], dict[str, str]]:
    module = importlib.import_module(NVRX)

    def main(folder: Path) -> None:
        sys.argv = [NVRX, "--fr-path", str(folder), "-p", f"{PREFIX}*", "--emit-stdout"]
        module.main()

    return lambda folder: _forked(lambda: main(folder), folder)


def _forked(main: Callable[[], object], folder: Path) -> dict[str, str]:
    output = folder.parent / (folder.name + ".told")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(LIMIT_S))
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            main()
            code = 0
        except BaseException as problem:  # noqa: BLE001 SystemExit of argparse too
            print(f"\nFAILED {type(problem).__name__}: {problem}"[:300], file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    text = output.read_text(errors="replace")
    output.unlink()
    error = ""
    if os.WIFSIGNALED(status):
        error = f"stopped after {LIMIT_S:.0f} s"
    elif os.WEXITSTATUS(status):
        error = text.rpartition("\nFAILED ")[2].splitlines()[0]
    return {"text": text[-200_000:] if len(text) > 200_000 else text, "error": error}


if __name__ == "__main__":
    _serve(sys.argv[1])
