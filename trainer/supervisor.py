"""Keeps one replica group running: torchrun on an admitted host, again whenever it left.

Theory of operation. A *launch* is one torchrun with its ranks. Before each launch the monitor
is asked whether the host is admitted; quarantine works because of this question. A refused
host makes way for the next of the list; when all refuse, the supervisor waits and asks again.
A monitor that cannot be reached admits everybody: training never depends on the monitor. Hosts
here are names, as a scheduler's would be: the process runs on this machine in any case, and
carries the name in LIGHTKEEPER_HOST.

A launch is over when torchrun is gone and none of its ranks is left. Ranks may be stopped or
hold the GIL for ever, and torchrun puts each into a session of its own, so they are found by a
mark in their environment and killed. Sidecars carry the mark too, but outlive their rank on
purpose (they are the black box): only the supervisor's own end ends them.

Standard library and requests; no torch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import requests

from trainer import options as trainer_options
from trainer.faults import ENVIRONMENT, FaultError, parse_specs
from trainer.status import StatusFile
from worker_server.wire import PATH_ADMISSION

MARK: Final = "LIGHTKEEPER_LAUNCH"
"""Environment variable by which everything that a launch started is found again."""
_SIDECAR: Final = re.compile(rb"worker_server[./]sidecar")
_POLL_S: Final = 0.2
_QUICK_S: Final = 10.0
"""A launch that left sooner than this doubles the back-off."""
_BACKOFF_LIMIT_S: Final = 30.0
_ADMISSION_TIMEOUT_S: Final = 2.0

# -- admission ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """The host may run the group."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The host may not run the group now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Away:
    """The monitor gave no answer that can be understood."""

    reason: str


Admission = Admitted | Refused | Away


def ask_monitor(url: str, group: str) -> Callable[[str], Admission]:
    """A question to the monitor at `url`, per host; it never raises."""
    session = requests.Session()
    session.trust_env = False  # no proxy between a launcher and its monitor

    def ask(host: str) -> Admission:
        try:
            response = session.get(
                url.rstrip("/") + PATH_ADMISSION,
                params={"host": host, "group": group},
                timeout=_ADMISSION_TIMEOUT_S,
            )
            response.raise_for_status()
            answer = response.json()
            admit, reason = answer["admit"], str(answer.get("reason", ""))
        except (
            requests.RequestException,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ) as error:
            return Away(f"{type(error).__name__}: {error}")
        return Admitted(reason) if admit is True else Refused(reason)

    return ask


def admit_all(host: str) -> Admission:
    """What is asked when there is no monitor."""
    del host
    return Admitted("no monitor configured")


# -- one launch -----------------------------------------------------------------------------


class Launch(Protocol):
    """One torchrun and what it started."""

    pid: int

    def poll(self) -> int | None:
        """Return code once torchrun has left (negative: killed by that signal), else None."""

    def stop(self) -> None:
        """End torchrun and its ranks; returns when they are gone."""

    def sweep(self) -> list[int]:
        """Kill ranks that outlived torchrun; who was killed."""


class Launcher(Protocol):
    """Starts launches."""

    def start(self, host: str) -> Launch:
        """Start torchrun for the group on `host`."""

    def close(self) -> list[int]:
        """End whatever any launch of this supervisor left, sidecars too; who was ended."""


def marked(mark: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Processes whose environment held `mark` (a launch, or a prefix of several) at their start."""
    needle = f"{MARK}={mark}".encode()
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # gone in the meantime, or another user's
            continue
        if any(item.startswith(needle) for item in environ.split(b"\0")):
            yield int(entry.name)


def _is_sidecar(pid: int) -> bool:
    try:
        return bool(_SIDECAR.search(Path(f"/proc/{pid}/cmdline").read_bytes()))
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _wait_gone(pids: Sequence[int], limit_s: float) -> list[int]:
    """Who is still there after `limit_s`."""
    until = time.monotonic() + limit_s
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _die_with_parent() -> None:
    """In the child: SIGTERM when the supervisor dies, however it dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@dataclass
class TorchrunLaunch:
    """A torchrun in a session of its own."""

    process: subprocess.Popen[bytes]
    mark: str
    grace_s: float

    @property
    def pid(self) -> int:
        """Of torchrun."""
        return self.process.pid

    def poll(self) -> int | None:
        """See `Launch`."""
        return self.process.poll()

    def stop(self) -> None:
        """See `Launch`; torchrun passes SIGTERM on to its ranks."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(self.grace_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self.sweep()

    def sweep(self) -> list[int]:
        """See `Launch`."""
        left = [pid for pid in marked(self.mark + ";") if not _is_sidecar(pid)]
        _signal(left, signal.SIGKILL)
        _wait_gone(left, self.grace_s)
        return left


@dataclass
class TorchrunLauncher:
    """Starts torchrun for one group with a fresh rendezvous port each time."""

    group: str
    nproc: int
    arguments: Sequence[str]
    monitor: str | None = None
    log_dir: Path | None = None
    grace_s: float = 5.0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0

    def command(self) -> list[str]:
        """What runs: torchrun chooses a free port itself and does not restart ranks."""
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={self.nproc}",
            "--max-restarts=0",
            f"--shutdown-timeout={max(1, round(self.grace_s / 2))}",
            "-m",
            "trainer.train",
            *self.arguments,
        ]

    def environment(self, host: str, mark: str) -> dict[str, str]:
        """The environment of the ranks."""
        environ = {
            **os.environ,
            "LIGHTKEEPER_HOST": host,
            "REPLICA_GROUP": self.group,
            MARK: mark + ";",
        }
        for stale in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(stale, None)
        environ.setdefault("OMP_NUM_THREADS", "1")
        if self.monitor is not None:
            environ.setdefault("LIGHTKEEPER_MONITOR", self.monitor)
        return environ

    def start(self, host: str) -> TorchrunLaunch:
        """See `Launcher`."""
        self._count += 1
        mark = f"{self.run_id}.{self._count}"
        output = None
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            output = (self.log_dir / f"{self.group}.log").open("ab")
        try:
            process = subprocess.Popen(
                self.command(),
                env=self.environment(host, mark),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        finally:
            if output is not None:
                output.close()
        return TorchrunLaunch(process, mark, self.grace_s)

    def close(self) -> list[int]:
        """See `Launcher`."""
        left = list(marked(self.run_id + "."))
        _signal(left, signal.SIGTERM)
        stubborn = _wait_gone(left, self.grace_s)
        _signal(stubborn, signal.SIGKILL)
        _wait_gone(stubborn, self.grace_s)
        return left


# -- the loop -------------------------------------------------------------------------------


class Supervisor:
    """Launch, watch, launch again."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        launcher: Launcher,
        admission: Callable[[str], Admission],
        emit: Callable[..., None],
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
        backoff_s: float = 1.0,
    ) -> None:
        """`wait` sleeps that many seconds and answers whether to stop."""
        self._hosts = tuple(hosts)
        self._launcher = launcher
        self._admission = admission
        self._emit = emit
        self._wait = wait
        self._clock = clock
        self._backoff_s = backoff_s
        self._quick = 0
        self._away = False
        self._refusals: dict[str, str] = {}

    def run(self) -> bool:
        """True when the training finished, False when asked to stop."""
        launch: Launch | None = None
        try:
            while True:
                host = self._admitted_host()
                if host is None:
                    return False
                launch = self._launcher.start(host)
                began_s = self._clock()
                self._emit("started", host=host, pid=launch.pid)
                while (code := launch.poll()) is None:
                    if self._wait(_POLL_S):
                        return False
                killed = launch.sweep()
                lived_s = self._clock() - began_s
                self._emit("left", host=host, rc=code, lived_s=round(lived_s, 3), killed=killed)
                launch = None
                if code == 0:
                    return True
                if self._wait(self._pause_s(lived_s)):
                    return False
        finally:
            if launch is not None:
                launch.stop()
                self._emit("stopped", pid=launch.pid)
            self._launcher.close()

    def _pause_s(self, lived_s: float) -> float:
        self._quick = self._quick + 1 if lived_s < _QUICK_S else 0
        return min(self._backoff_s * 2.0 ** max(0, self._quick - 1), _BACKOFF_LIMIT_S)

    def _admitted_host(self) -> str | None:
        """The first admitted host; None when asked to stop while all refuse."""
        waiting = False
        while True:
            away: list[str] = []
            for host in self._hosts:
                answer = self._admission(host)
                match answer:
                    case Admitted():
                        self._note_back()
                        self._refusals.pop(host, None)
                        return host
                    case Refused(reason):
                        self._note_back()
                        self._note_refusal(host, reason)
                    case Away(reason):
                        self._note_away(reason)
                        away.append(host)
            if away:
                # Nobody to ask: rather a host that was not refused when last asked.
                return min(away, key=lambda host: host in self._refusals)
            if not waiting:
                self._emit("waiting", hosts=list(self._hosts), reason="every host is refused")
                waiting = True
            if self._wait(max(self._backoff_s, 1.0)):
                return None

    def _note_refusal(self, host: str, reason: str) -> None:
        if self._refusals.get(host) != reason:
            self._emit("refused", host=host, reason=reason)
        self._refusals[host] = reason

    def _note_away(self, reason: str) -> None:
        if not self._away:
            self._emit("monitor_away", reason=reason, then="hosts are admitted without asking")
        self._away = True

    def _note_back(self) -> None:
        if self._away:
            self._emit("monitor_back")
        self._away = False


# -- command line ---------------------------------------------------------------------------

_EPILOG = """\
example:
  python -m trainer.supervisor --group rg_1 --hosts host-1,spare-1 \\
      --monitor http://127.0.0.1:8470 -- --step-time 0.2 --steps 1000
Everything after -- goes to `python -m trainer.train` (see its --help).
Ranks inherit this environment: set TORCHFT_LIGHTHOUSE, and GLOO_SOCKET_IFNAME=lo on one machine.

exit status: 0 the training finished; 2 wrong use; 143 ended by SIGTERM, 130 by SIGINT.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m trainer.supervisor`."""
    top = argparse.ArgumentParser(
        prog="trainer.supervisor",
        description="Keep one replica group running: start torchrun on the first host that the "
        "monitor admits, and again, after asking again, whenever it left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--group", required=True, metavar="NAME", help="stable name of the replica group: rg_1")
    add("--hosts", required=True, metavar="H,H", help="hosts in order of preference, by comma")
    add("--monitor", metavar="URL", help="whom to ask for admission; without it all are admitted")
    add("--nproc", type=int, default=1, metavar="N", help="ranks in the group (default 1)")
    add("--log-dir", type=Path, metavar="DIR", help="output to DIR/GROUP.log instead of here")
    add("--status-file", type=Path, metavar="FILE", help="append events as JSON lines")
    add(
        "--backoff",
        type=float,
        default=1.0,
        metavar="S",
        dest="backoff_s",
        help="pause before a restart; doubles up to 30 s while launches fail within 10 s (default 1)",
    )
    add(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        dest="grace_s",
        help="from SIGTERM to SIGKILL when ending processes (default 5)",
    )
    add("arguments", nargs="*", metavar="-- ARGS", help="for python -m trainer.train")
    return top


def _check(top: argparse.ArgumentParser, args: argparse.Namespace) -> list[str]:
    """The hosts; wrong use ends the process here and not in every launch."""
    hosts = [host.strip() for host in args.hosts.split(",") if host.strip()]
    if not hosts:
        top.error("--hosts names no host")
    if args.nproc < 1:
        top.error(f"--nproc {args.nproc} is below 1")
    if args.backoff_s < 0 or args.grace_s <= 0:
        top.error("--backoff and --grace are seconds, not below 0")
    if args.monitor and not args.monitor.startswith(("http://", "https://")):
        top.error(f"--monitor {args.monitor!r} is not an http:// URL")
    if "TORCHFT_LIGHTHOUSE" not in os.environ:
        top.error("TORCHFT_LIGHTHOUSE=http://host:port is not set")
    options = trainer_options.parse(args.arguments)
    try:
        planned = parse_specs(os.environ.get(ENVIRONMENT, ""))
    except FaultError as error:
        top.error(f"{ENVIRONMENT}: {error}")
    if planned and options.fault_file is None:
        top.error(f"{ENVIRONMENT} needs --fault-file FILE after --")
    return hosts


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m trainer.supervisor`."""
    top = parser()
    args = top.parse_args(arguments)
    hosts = _check(top, args)

    stop = threading.Event()
    received: list[int] = []

    def ask_to_stop(number: int, _frame: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)

    record = StatusFile(args.status_file, group=args.group)

    def emit(event: str, **facts: object) -> None:
        record.write(event, **facts)
        words = "  ".join(f"{key}={value}" for key, value in facts.items())
        print(f"supervisor {args.group}: {event}  {words}", file=sys.stderr, flush=True)

    supervisor = Supervisor(
        hosts,
        launcher=TorchrunLauncher(
            args.group, args.nproc, args.arguments, args.monitor, args.log_dir, args.grace_s
        ),
        admission=ask_monitor(args.monitor, args.group) if args.monitor else admit_all,
        emit=emit,
        wait=stop.wait,
        backoff_s=args.backoff_s,
    )
    finished = supervisor.run()
    return 0 if finished else 128 + received[0]


if __name__ == "__main__":
    sys.exit(main())
