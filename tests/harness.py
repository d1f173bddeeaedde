"""The one harness of the long runs (campaign, field, matrix, kill-each, soak, versions): options, a
results file that a later run goes on with, and one living fleet, replaced when beyond repair.

What a suite adds is its cases, what it does to a fleet, its judgement and its page.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

Row = dict[str, Any]
LOOK_S: Final = 0.3


class FleetError(RuntimeError):
    """The fleet is beyond repair; the message says what broke."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


# -- a run from the command line -----------------------------------------------------------------


def options(module: str, what: str | None, evidence: str) -> argparse.ArgumentParser:
    """What every suite has; `evidence`: the name of its results and of its page."""
    top = argparse.ArgumentParser(prog=module, description=what)
    add = top.add_argument
    for name, suffix, kind in (
        ("--out", "jsonl", "results, one JSON object a line"),
        ("--page", "md", "the page made of them"),
    ):
        default = Path(f"evidence/{evidence}.{suffix}")
        add(name, type=Path, default=default, metavar="FILE", help=f"{kind} ({default})")
    add("--list", action="store_true", help="print the cases, and run nothing")
    add("--page-only", action="store_true", help="write the page from the results, run nothing")
    add("--folder", type=Path, help="where fleets keep logs and stores (default: under /tmp)")
    return top


def begin(module: str, arguments: Sequence[str] | None = None) -> None:
    """SIGTERM unwinds, so that fleets are ended; results say by which command they were made."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = " ".join([f"python -m {module}", *(sys.argv[1:] if arguments is None else arguments)])
    os.environ.setdefault("LIGHTKEEPER_COMMAND", command)


def left(cases: Iterable[Any], out: Path, key: Callable[[Any], str]) -> list[Any]:
    """The cases of which there are no results."""
    cases, done = list(cases), {row["key"] for row in read(out)}
    remaining = [case for case in cases if key(case) not in done]
    say(f"{len(cases)} runs, {len(cases) - len(remaining)} done already")
    return remaining


def run_all(
    cases: Sequence[Any], out: Path, runner: Runner, name: Callable[[Any], str],
    summary: Callable[[Row], str],
) -> bool:  # fmt: skip
    """Each case in turn, its row kept at once; whether every one was made."""
    made = True
    try:
        for number, case in enumerate(cases, 1):
            say(f"{number}/{len(cases)} {name(case)}")
            try:
                row = runner.run(case)
            except FleetError as exc:
                say(f"   {exc}")
                runner.close()
                made = False
                continue
            append(out, row)
            say(f"   {summary(row)}")
    finally:
        runner.close()
    return made


# -- results -------------------------------------------------------------------------------------


def append(path: Path, row: Row) -> None:
    """One more line; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "command": os.environ.get("LIGHTKEEPER_COMMAND", "python -m tests.campaign"),
        "code": code(),
    }
    line = json.dumps({**row, **more}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Row]:
    """All lines so far; of a key that was run twice the latest."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return list({line["key"]: line for line in lines}.values())


def write(page: Path, text: str) -> None:
    """The page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)


@functools.cache
def code() -> str:
    """The commit that runs; `-dirty` after it where files differ."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    described = subprocess.run(command, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def machine() -> str:
    """Where it runs."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"


# -- one living fleet ----------------------------------------------------------------------------


class Living(Protocol):
    """What a runner asks of its fleet."""

    folder: Path

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def check(self) -> None:
        """Raises FleetError when a process of it has ended."""


class Runner:
    """Keeps one fleet, and starts another when one is beyond repair."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._name = name
        self._base = folder or Path(tempfile.mkdtemp(prefix="lightkeeper-fleets-"))
        self._count = 0
        self._fleet: Any = None
        self._watch: Any = None

    def run(self, case: Any) -> Row:
        """One case, from a whole fleet to a row. Raises FleetError."""
        raise NotImplementedError

    def _made(self, folder: Path) -> Living:
        """A fleet that is not started."""
        raise NotImplementedError

    def _started(self) -> None:
        """What looks at it is made."""

    def _until_whole(self) -> str | None:
        """Wait for it; why in vain."""
        raise NotImplementedError

    def close(self) -> None:
        """End the fleet."""
        if self._fleet is not None:
            self._fleet.stop()
        self._fleet = self._watch = None

    def _ready(self) -> Any:
        """A whole fleet.

        Raises:
            FleetError: two did not become whole.
        """
        why: str | None = None
        for _ in range(2):
            if self._fleet is None:
                self._begin()
            why = self._until_whole()
            if why is None:
                return self._fleet
            say(f"   the fleet does not become whole: {why}")
            self.close()
        raise FleetError(f"no fleet of {self._name} becomes whole: {why}")

    def _begin(self) -> None:
        self._count += 1
        folder = self._base / f"{self._name.replace('/', '-')}-{self._count}"
        say(f"   a fleet of {self._name} starts in {folder}")
        self._fleet = self._made(folder)
        self._fleet.start()
        self._started()


def until_calm(
    fleet: Living, not_whole: Callable[[], str | None], limit_s: float, calm_s: float
) -> str | None:
    """Wait until the fleet is whole and has been so for a while; else why it is not."""
    deadline, calm_from, why = time.monotonic() + limit_s, None, "no look yet"
    while time.monotonic() < deadline:
        try:
            fleet.check()
        except FleetError as exc:
            return str(exc)
        reason, now_s = not_whole(), time.monotonic()
        why = reason or why
        if reason is not None:
            calm_from = None
        elif calm_from is None:
            calm_from = now_s
        elif now_s - calm_from >= calm_s:
            return None
        time.sleep(LOOK_S)
    return why


# -- processes and their files -------------------------------------------------------------------


def prepare(folder: Path, *names: str) -> Path:
    """Make the folders of a fleet, `run` among them, and its token file, which is returned."""
    for name in ("run", *names):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "run").chmod(0o700)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_urlsafe(24))
    return token


class StepLog:
    """The status file that all trainers append to, read on and on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Row] = []

    def read(self) -> list[Row]:
        """All lines so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self.lines.append(json.loads(line))
        return self.lines


def children(pid: int) -> list[int]:
    """Of a process; none of one that is gone."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Children, theirs, and so on."""
    pids = []
    for child in children(pid):
        pids += [child, *descendants(child)]
    return pids
