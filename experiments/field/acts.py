"""What is done to a job from outside, by the words of a row: `3: gdb rank 1.0 for 10`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import requests

from experiments.field.fleet import Fleet

_ROW: Final = re.compile(r"^(?P<at>[\d.]+): (?P<what>.+?)(?: for (?P<seconds>[\d.]+))?$")
_CPU: Final = Path("/sys/fs/cgroup/cpu")
_MEMORY: Final = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class Act:
    """One deed: when, in seconds after the case's first, what, and for how long."""

    at_s: float
    verb: str
    whom: str
    seconds: float | None = None

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + (self.seconds or 0.0)


def parse(text: str) -> Act:
    """A row's words.

    Raises:
        ValueError: they are none.
    """
    match = _ROW.match(text)
    if match is None:
        raise ValueError(f"not `SECONDS: WHAT [WHOM] [for SECONDS]`: {text!r}")
    verb, _, whom = match["what"].partition(" ")
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is none of {', '.join(VERBS)}")
    return Act(
        float(match["at"]),
        verb,
        whom,
        None if match["seconds"] is None else float(match["seconds"]),
    )


@dataclass
class Actor:
    """Does what the rows say, when it is time."""

    fleet: Fleet
    done: list[str] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    _armed: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def do(self, act: Act) -> None:
        """Begin it; what lasts goes on in a thread."""
        self.done.append(f"{time.time():.2f} {act.verb} {act.whom} {act.seconds or ''}".strip())
        run = VERBS[act.verb]
        if act.seconds is None or act.verb in _AT_ONCE:
            run(self, act)
            return
        thread = threading.Thread(target=_quietly, args=(run, self, act), daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Undo what holds processes: so that they can be ended."""
        for undo in reversed(self.undo):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                undo()
        for thread in self._threads:
            thread.join(15)

    def arm(self, act: Act) -> None:
        """The next bug of the script may strike: `arm`, or `arm orphan 1.0` for that process."""
        self._armed += 1
        text = str(self._armed)
        if act.whom:
            text += f" {self.fleet.pids(act.whom)[0]}"
        half = self.fleet.folder / ".go"
        half.write_text(text)
        half.replace(self.fleet.folder / "go")

    def signal(self, act: Act, number: signal.Signals) -> None:
        """Send it to all of them."""
        pids = self.fleet.pids(act.whom)
        if not pids:
            raise RuntimeError(f"nobody is {act.whom}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, act: Act) -> None:
        """`kill -STOP` by hand, and `-CONT` after a while if it says for how long."""
        pids = self.fleet.pids(act.whom)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if act.seconds is None:
            return
        time.sleep(act.seconds)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stutter(self, act: Act) -> None:
        """Stopped for a second, five times."""
        for _ in range(5):
            self.stop(Act(0, "stop", act.whom, 1.0))
            time.sleep(4)

    def gdb(self, act: Act) -> None:
        """A person attaches, looks, and detaches."""
        self._attached(["gdb", "-q", "-nx", "-p", "{pid}", "-ex", "info threads"], act)

    def strace(self, act: Act) -> None:
        """What is it doing there?"""
        out = self.fleet.folder / "logs" / "strace.out"
        self._attached(["strace", "-f", "-o", str(out), "-p", "{pid}"], act)

    def _attached(self, command: list[str], act: Act) -> None:
        [pid] = self.fleet.pids(act.whom)
        words = [word.format(pid=pid) for word in command]
        with (self.fleet.folder / "logs" / f"{act.verb}.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.undo.append(process.kill)
        time.sleep(act.seconds or 0)
        if act.verb == "gdb" and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write(b"detach\nquit\n")
                process.stdin.close()
        else:
            process.terminate()
        process.wait(60)

    def pyspy(self, act: Act) -> None:
        """`py-spy record`, as in every tutorial."""
        [pid] = self.fleet.pids(act.whom)
        out = self.fleet.folder / "logs" / "profile.svg"
        with (self.fleet.folder / "logs" / "py-spy.log").open("ab") as log:
            subprocess.run(
                [
                    f"{_bin()}/py-spy", "record", "-d", str(int(act.seconds or 10)),
                    "-o", str(out), "-p", str(pid),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, timeout=90,
            )  # fmt: skip

    def dump(self, act: Act) -> None:
        """`py-spy dump` again and again."""
        until = time.monotonic() + (act.seconds or 10)
        while time.monotonic() < until:
            for pid in self.fleet.pids(act.whom):
                subprocess.run(
                    [f"{_bin()}/py-spy", "dump", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30,
                )  # fmt: skip
            time.sleep(1)

    def throttle(self, act: Act) -> None:
        """So many percent of a core: `throttle 6 rank 1.0`."""
        percent, _, whom = act.whom.partition(" ")
        folder = _CPU / f"{self.fleet.mark}-{len(self.undo)}"
        folder.mkdir()

        def undo() -> None:
            (folder / "cpu.cfs_quota_us").write_text("-1")
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (_CPU / "cgroup.procs").write_text(pid)
            folder.rmdir()

        self.undo.append(undo)
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(str(int(float(percent) * 1000)))
        for pid in self.fleet.pids(whom):
            (folder / "cgroup.procs").write_text(str(pid))
        if act.seconds is not None:
            time.sleep(act.seconds)
            undo()
            self.undo.remove(undo)

    def limit(self, act: Act) -> None:
        """No more memory than it has, and so many MiB: `limit 64 rank 1.0`."""
        more, _, whom = act.whom.partition(" ")
        [pid] = self.fleet.pids(whom)
        folder = _MEMORY / f"{self.fleet.mark}-{len(self.undo)}"
        folder.mkdir()

        def undo() -> None:
            for left in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (_MEMORY / "cgroup.procs").write_text(left)
            folder.rmdir()

        self.undo.append(undo)
        (folder / "memory.limit_in_bytes").write_text(str(int(more) << 20))
        (folder / "cgroup.procs").write_text(str(pid))

    def dd(self, act: Act) -> None:
        """Somebody else writes to the disk as fast as it goes."""
        for number in range(3):
            file = self.fleet.folder / f"noise-{number}"
            write = f"dd if=/dev/zero of={file} bs=4M count=32 oflag=dsync 2>/dev/null"
            process = subprocess.Popen(
                ["sh", "-c", f"while :; do {write}; done"], start_new_session=True
            )
            self.undo.append(lambda pid=process.pid: os.killpg(pid, signal.SIGKILL))

    def flock(self, act: Act) -> None:
        """Somebody else's process holds the lock of the file, and does not end."""
        file = (self.fleet.folder / "locked").open("a")
        fcntl.flock(file, fcntl.LOCK_EX)
        self.undo.append(file.close)

    def disk(self, act: Act) -> None:
        """A disk of its own for the metrics."""
        image, mount = self.fleet.folder / "disk.img", self.fleet.folder / "disk"
        mount.mkdir()
        _run("truncate", "-s", "16M", str(image))
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(mount))

        def undo() -> None:
            subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True)
            time.sleep(0.2)
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)

        self.undo.append(undo)

    def freeze(self, act: Act) -> None:
        """It hangs: writes wait in state D."""
        _run("fsfreeze", "-f", str(self.fleet.folder / "disk"))

    def launch(self, act: Act) -> None:
        """The loop of a group that was not there, or is over."""
        self.fleet.start_group(act.whom)

    def retire(self, act: Act) -> None:
        """An operator ends a group for good: first its loop, then torchrun gets SIGTERM."""
        for number, whom in ((signal.SIGKILL, "launcher"), (signal.SIGTERM, "agent")):
            for pid in self.fleet.pids(f"{whom} {act.whom}"):
                os.kill(pid, number)

    def name(self, act: Act) -> None:
        """Find out another group's full replica id, for a rank that is going to claim it."""
        page = requests.get(f"{self.fleet.lighthouse_url}/status", timeout=5).text
        ids = re.findall(rf"\b(?:[a-z_]+_)?{act.whom}:[0-9a-f-]{{36}}", page)
        (self.fleet.folder / "other_id").write_text(ids[0])

    def hog(self, act: Act) -> None:
        """Other work on the same cores."""
        words = ["sh", "-c", "while :; do :; done"]
        hogs = [subprocess.Popen(words) for _ in range(2)]
        self.undo += [process.kill for process in hogs]
        time.sleep(act.seconds or 10)
        for hog in hogs:
            hog.kill()
            hog.wait()

    def crowd(self, act: Act) -> None:
        """Its launcher bound it to one core, and 20 other jobs too: `crowd rank 1.0`."""
        busy = ["sh", "-c", "while :; do :; done"]  # a session each: the kernel shares by session
        crowd = [subprocess.Popen(busy, start_new_session=True) for _ in range(20)]
        self.undo += [process.kill for process in crowd]
        tasks = [process.pid for process in crowd]
        for pid in self.fleet.pids(act.whom):
            tasks += map(int, os.listdir(f"/proc/{pid}/task"))
        for task in tasks:
            os.sched_setaffinity(task, {0})

    def log(self, act: Act) -> None:
        """Nothing: a row that only lets time go by."""


def _bin() -> Path:
    return Path(sys.executable).parent


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


def _quietly(run: Callable[[Actor, Act], None], actor: Actor, act: Act) -> None:
    try:
        run(actor, act)
    except Exception as exc:  # noqa: BLE001 - a deed that fails makes the case invalid, told in its record
        actor.done.append(f"FAILED {act.verb} {act.whom}: {exc!r}")


_AT_ONCE: Final = {"arm"}
VERBS: Final[dict[str, Callable[[Actor, Act], None]]] = {
    "arm": Actor.arm,
    "KILL": lambda actor, act: actor.signal(act, signal.SIGKILL),
    "TERM": lambda actor, act: actor.signal(act, signal.SIGTERM),
    "INT": lambda actor, act: actor.signal(act, signal.SIGINT),
    "HUP": lambda actor, act: actor.signal(act, signal.SIGHUP),
    "USR1": lambda actor, act: actor.signal(act, signal.SIGUSR1),
    "stop": Actor.stop,
    "stutter": Actor.stutter,
    "gdb": Actor.gdb,
    "strace": Actor.strace,
    "pyspy": Actor.pyspy,
    "dump": Actor.dump,
    "throttle": Actor.throttle,
    "limit": Actor.limit,
    "dd": Actor.dd,
    "flock": Actor.flock,
    "disk": Actor.disk,
    "freeze": Actor.freeze,
    "launch": Actor.launch,
    "retire": Actor.retire,
    "name": Actor.name,
    "hog": Actor.hog,
    "crowd": Actor.crowd,
    "log": Actor.log,
}
