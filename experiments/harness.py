"""One machine for all experiments: a command line, a results file that a later run goes on with,
one living fleet that is replaced when beyond repair, and a page.

An experiment adds its cases, what it does to a fleet, its judgement and its page (`Experiment`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

Row = dict[str, Any]
LOOK_S: Final = 0.3
ENDING: Final = threading.Event()
"""Set when somebody has asked for the end: cases that run in lanes give up."""


class FleetError(RuntimeError):
    """The fleet, or the case, is beyond repair; the message says what broke."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


# -- an experiment ---------------------------------------------------------------------------------


class Case(Protocol):
    """What an experiment makes one row of."""

    @property
    def key(self) -> str:
        """Names it in the results."""

    @property
    def name(self) -> str:
        """What `--only` chooses it by: the row of its table, whatever the number of the run."""


class Experiment:
    """Made by a subclass in the `__init__` of its folder."""

    name: str
    """Of its files in evidence/, and `python -m experiments NAME`."""
    what: str
    on_page = ""
    """The page, where that is another's."""
    runs = 1
    """Runs of each case, if nothing else is asked for."""
    lanes = 1
    """Runs at once."""

    def options(self, add: Callable[..., Any]) -> None:
        """Its own options."""

    def cases(self, args: argparse.Namespace) -> Iterable[Any]:
        """All runs, in their order; each is a `Case`."""
        raise NotImplementedError

    def runner(self, args: argparse.Namespace) -> Runner:
        """What makes them."""
        raise NotImplementedError

    def why_not(self) -> str:
        """Why this machine cannot; empty when it can."""
        return ""

    def verdict(self, row: Row) -> str:
        """What a row is worth in a word; `invalid` ones are made again."""
        return ""

    def told(self, row: Row) -> str:
        """A row for the terminal."""
        raise NotImplementedError

    def described(self, case: Any) -> str:
        """A case for the terminal."""
        return str(case.key)

    def out(self, args: argparse.Namespace) -> Path:
        """The results file of these options."""
        return Path(args.out)

    def page(self, out: Path) -> str:
        """The page made of the results, and of those beside them."""
        raise NotImplementedError

    def failed(self, row: Row) -> bool:
        """Whether this row lets the command end with 1."""
        return False

    # -- the command -------------------------------------------------------------------------------

    def parser(self) -> argparse.ArgumentParser:
        """The command line."""
        top = argparse.ArgumentParser(prog=f"experiments {self.name}", description=self.what)
        add = top.add_argument
        for option, suffix, kind in (
            ("--out", "jsonl", "results, one JSON object a line"),
            ("--page", "md", "the page made of them"),
        ):
            stem = self.on_page if self.on_page and suffix == "md" else self.name
            default = Path(f"evidence/{stem}.{suffix}")
            add(option, type=Path, default=default, metavar="FILE", help=f"{kind} ({default})")
        add("--only", action="append", default=[], metavar="NAME",
            help="this case, or all whose name matches; repeatable")  # fmt: skip
        add("--runs", type=int, default=self.runs, metavar="N", help="of each case (%(default)s)")
        add("--lanes", type=int, default=self.lanes, metavar="N", help="at once (%(default)s)")
        add("--resume", action="store_true", help="go on with the results: do only what is missing")
        add("--again", action="append", default=[], metavar="VERDICT",
            help="with --resume: make again what got this verdict; repeatable")  # fmt: skip
        add("--list", action="store_true", help="print the cases, and run nothing")
        add("--page-only", action="store_true", help="write the page from the results, run nothing")
        add("--folder", type=Path, help="where fleets keep logs and stores (default: under /tmp)")
        self.options(add)
        return top

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Exit status 0 when every run was made (whatever came of it), 1 when not; 3: not here."""
        top = self.parser()
        args = top.parse_args(arguments)
        if args.page_only:
            write(args.page, self.page(args.out))
            return 0
        cases = list(chosen(self.cases(args), args.only))
        if args.list:
            print("\n".join(map(self.described, cases)))
            return 0
        if why := self.why_not():
            say(f"cannot be done here: {why}")
            return 3
        out = self.out(args)
        if out.exists() and not args.resume:
            top.error(f"{out} exists: --resume to go on with it, or name another --out")
        begin(self.name, arguments)
        left = self._left(cases, out, args.again)
        try:
            made = run_all(self, left, out, self.runner(args), args.lanes)
        finally:
            write(args.page, self.page(args.out))
        return 0 if made else 1

    def _left(self, cases: Sequence[Any], out: Path, again: Sequence[str]) -> list[Any]:
        """The cases of which there are no results, or none that count."""
        rows = read(out)
        done = {row["key"] for row in rows if self.verdict(row) not in (*again, "invalid")}
        remaining = [case for case in cases if case.key not in done]
        say(f"{len(cases)} runs, {len(cases) - len(remaining)} done already")
        return remaining


def chosen(cases: Iterable[Any], only: Sequence[str]) -> list[Any]:
    """Cases by exact name, else by a pattern in the name; all without a word."""
    cases = list(cases)
    names = {case.name for case in cases}
    return [
        case for case in cases
        if not only or case.name in only
        or any(word not in names and re.search(word, case.name) for word in only)
    ]  # fmt: skip


def begin(name: str, arguments: Sequence[str] | None = None) -> None:
    """SIGTERM unwinds, so that fleets are ended; results say by which command they were made."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & has it ignored
    words = sys.argv[2:] if arguments is None else arguments
    command = " ".join(["python -m experiments", name, *words])
    os.environ.setdefault("LIGHTKEEPER_COMMAND", command)


def run_all(
    experiment: Experiment, cases: Sequence[Any], out: Path, runner: Runner, lanes: int = 1
) -> bool:
    """Each case in turn, or some at once, each row kept as it comes; whether all were made."""

    def one(numbered: tuple[int, Any]) -> bool:
        number, case = numbered
        if ENDING.is_set():
            return False
        say(f"{number}/{len(cases)} {experiment.described(case)}")
        try:
            row = runner.run(case)
        except FleetError as exc:
            say(f"   {case.key}: NOT MADE: {exc}")
            runner.broke()
            return False
        append(out, row)
        say(f"   {experiment.told(row)}")
        return not experiment.failed(row)

    try:
        if lanes == 1:  # in this thread, which a signal unwinds with the fleet
            made = [one(numbered) for numbered in enumerate(cases, 1)]
            return all(made)
        with ThreadPoolExecutor(lanes) as pool:
            try:
                return all(list(pool.map(one, enumerate(cases, 1))))
            except BaseException:
                ENDING.set()
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        runner.close()


# -- results -------------------------------------------------------------------------------------


def append(path: Path, row: Row) -> None:
    """One more line; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "command": os.environ.get("LIGHTKEEPER_COMMAND", "python -m experiments"),
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
    """Makes the runs. One whose cases share fleets keeps a fleet of the case's setting (`ready`),
    and starts another when that is beyond repair, or when the setting changes.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.base = folder or Path(tempfile.mkdtemp(prefix="lightkeeper-fleets-"))
        self._count = 0
        self._setting: Any = None
        self.fleet: Any = None
        self.watch: Any = None

    def run(self, case: Any) -> Row:
        """One case, from a whole fleet to a row. Raises FleetError."""
        raise NotImplementedError

    def make(self, setting: Any, folder: Path) -> Living:
        """A fleet that is not started."""
        raise NotImplementedError

    def started(self) -> None:
        """What looks at the fleet is made."""

    def until_whole(self) -> str | None:
        """Wait for it; why in vain."""
        raise NotImplementedError

    def broke(self) -> None:
        """A case was not made."""
        self.close()

    def close(self) -> None:
        """End the fleet."""
        if self.watch is not None:
            self.watch.close()
        if self.fleet is not None:
            self.fleet.stop()
        self.fleet = self.watch = None

    def ready(self, setting: Any) -> Any:
        """A whole fleet of this setting.

        Raises:
            FleetError: two did not become whole.
        """
        if setting != self._setting:
            self.close()
        self._setting = setting
        why: str | None = None
        for _ in range(2):
            if self.fleet is None:
                self._begin()
            why = self.until_whole()
            if why is None:
                return self.fleet
            say(f"   the fleet does not become whole: {why}")
            self.close()
        raise FleetError(f"no fleet of {setting} becomes whole: {why}")

    def _begin(self) -> None:
        self._count += 1
        folder = self.base / f"{str(self._setting).replace('/', '-')}-{self._count}"
        say(f"   a fleet of {self._setting} starts in {folder}")
        self.fleet = self.make(self._setting, folder)
        self.fleet.start()
        self.started()

    def look_for(self, seconds: float) -> None:
        """Look at the fleet for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.fleet.check()
            if self.watch is not None:
                self.watch.look()
            time.sleep(LOOK_S)


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
