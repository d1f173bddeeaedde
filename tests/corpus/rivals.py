"""Other people's analysers, asked about the same dumps, and ours.

torchfrtrace runs as its users run it: the command's own `main` on a directory of pickles, in a
process of its own with a time limit. It prints text; what it accuses is read from that text in two
ways, because it says more than one thing: its first complaint only, and all of them together.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
PREFIX = "nccl_trace_rank_"


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
    found = complaints(result["text"])
    if not found and result["error"]:
        nothing = Answer(frozenset(), error=result["error"])
        return nothing, nothing
    first = frozenset(found[0]) if found else frozenset()
    every = frozenset(rank for ranks in found for rank in ranks)
    return Answer(first, alarms=len(found)), Answer(every, alarms=len(found))


class Torchfrtrace:
    """A process that has imported torch, and forks for each directory."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.corpus.rivals"],
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

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def torchfrtrace() -> Iterator[Torchfrtrace]:
    tool = Torchfrtrace()
    try:
        yield tool
    finally:
        tool.close()


def _serve() -> None:
    """Answer directories from stdin, one line each."""
    from torch.distributed.flight_recorder import fr_trace

    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder = Path(line.strip())
        answer = _forked(fr_trace.main, folder, [])
        if "Missing dump files" in answer["error"]:
            answer = _forked(fr_trace.main, folder, ["--allow-incomplete-ranks"])
        print(json.dumps(answer), file=out, flush=True)


def _forked(main: object, folder: Path, options: list[str]) -> dict[str, str]:
    told = folder.parent / (folder.name + ".torchfrtrace")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(LIMIT_S))
            handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            main(["-p", PREFIX, str(folder), *options])  # type: ignore[operator]
            code = 0
        except BaseException as problem:  # noqa: BLE001 SystemExit of argparse too
            print(f"\nFAILED {type(problem).__name__}: {problem}"[:300], file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    text = told.read_text(errors="replace")
    told.unlink()
    error = ""
    if os.WIFSIGNALED(status):
        error = f"stopped after {LIMIT_S:.0f} s"
    elif os.WEXITSTATUS(status):
        error = text.rpartition("\nFAILED ")[2].splitlines()[0]
    return {"text": text[-200_000:] if len(text) > 200_000 else text, "error": error}


if __name__ == "__main__":
    _serve()
