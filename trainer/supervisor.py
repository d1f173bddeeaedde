"""Keeps one replica group running: starts torchrun on an admitted host, again whenever it ends.

Theory of operation. Before each launch the supervisor asks the monitor whether the host is
admitted; quarantine relies on this question. A refused host is skipped for the next on the list;
if all are refused, the supervisor waits and asks again. Hosts are only names here, like a
scheduler's: the ranks always run on this machine, with the name in LIGHTKEEPER_HOST.

A launch is over when torchrun and all its ranks are gone. A rank may be stopped, or hold the GIL
forever, and torchrun gives each rank its own session. So everything that a launch starts carries
a mark in its environment, by which it is found in /proc. Sidecars carry the mark too, but outlive
their rank on purpose (they are the black box): only `Launcher.close` ends them.

No torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from lightkeeper.trainer import options as trainer_options
from lightkeeper.trainer.options import option, parser_of
from lightkeeper.trainer.status import StatusFile
from lightkeeper.worker_server.rank.admission import (
    Admission,
    Admitted,
    MonitorAway,
    Refused,
    ask_monitors,
)
from lightkeeper.worker_server.rank.settings import monitors_of
from lightkeeper.worker_server.run_dir import stat_fields

MARK: Final = "LIGHTKEEPER_LAUNCH"
"""Environment variable that marks everything a launch started."""
_SIDECAR: Final = re.compile(rb"worker_server[./]sidecar")
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.2
_QUICK_S: Final = 10.0
"""A launch that ends sooner than this doubles the back-off."""
_BACKOFF_LIMIT_S: Final = 30.0
_ASK_S: Final = 5.0
"""For all monitors together."""


def asker(monitors: str, group: str) -> Callable[[str], Admission]:
    """Asks the monitors, `URL` or `URL,URL`, about a host; without one, all are admitted.

    Raises:
        ValueError: a URL is invalid.
    """
    urls = list(monitors_of(monitors))
    if not urls:
        return lambda _: Admitted("no monitor configured")
    return lambda host: ask_monitors(urls, host, group, _ASK_S)


@dataclass(eq=False)
class Supervisor:
    """Launch, watch, launch again."""

    hosts: Sequence[str]
    _: KW_ONLY
    launcher: Launcher
    admission: Callable[[str], Admission]
    emit: Callable[..., None]
    wait: Callable[[float], bool]
    """Sleeps that many seconds; returns whether to stop."""
    clock: Callable[[], float] = time.monotonic
    backoff_s: float = 1.0
    _quick: int = field(default=0, init=False)
    _refusals: dict[str, str] = field(default_factory=dict, init=False)

    def run(self) -> bool:
        """True when the training finished, False when asked to stop."""
        launch: Launch | None = None
        try:
            while True:
                host = self._admitted_host()
                if host is None:
                    return False
                launch = self.launcher.start(host)
                began_s = self.clock()
                self.emit("started", host=host, pid=launch.pid)
                while (code := launch.poll()) is None:
                    if self.wait(_POLL_S):
                        return False
                killed = launch.sweep()
                lived_s = self.clock() - began_s
                self.emit("left", host=host, rc=code, lived_s=round(lived_s, 3), killed=killed)
                launch = None
                if code == 0:
                    return True
                if self.wait(self._pause_s(lived_s)):
                    return False
        finally:
            if launch is not None:
                launch.stop()
                self.emit("stopped", pid=launch.pid)
            self.launcher.close()

    def _pause_s(self, lived_s: float) -> float:
        self._quick = self._quick + 1 if lived_s < _QUICK_S else 0
        return min(self.backoff_s * 2.0 ** max(0, self._quick - 1), _BACKOFF_LIMIT_S)

    def _admitted_host(self) -> str | None:
        """The first admitted host; None when asked to stop while all are refused."""
        waiting = False
        while True:
            for host in self.hosts:
                answer = self.admission(host)
                match answer:
                    case Admitted():
                        self._refusals.pop(host, None)
                        return host
                    case Refused(reason):
                        if self._refusals.get(host) != reason:
                            self.emit("refused", host=host, reason=reason)
                        self._refusals[host] = reason
                    case MonitorAway(reason):
                        self.emit("monitor_away", reason=reason, then="hosts are admitted unasked")
                        # Nobody to ask: prefer a host that was not refused last time.
                        return min(self.hosts, key=lambda name: name in self._refusals)
            if not waiting:
                self.emit("waiting", hosts=list(self.hosts), reason="every host is refused")
                waiting = True
            if self.wait(max(self.backoff_s, 1.0)):
                return None


# -- launches -----------------------------------------------------------------------------------


def launched(mark: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Processes that started with `mark` (a launch, or a prefix of several) in the environment."""
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


def _end_all(pids: Sequence[int], number: signal.Signals, limit_s: float) -> list[int]:
    """Send a signal; those still alive after `limit_s`."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    until = time.monotonic() + limit_s
    while left := [pid for pid in pids if (stat_fields(pid) or "X")[0] not in "ZX"]:
        if time.monotonic() >= until:
            break
        time.sleep(0.05)
    return left


def die_with_parent() -> None:
    """In the child, between fork and exec: SIGTERM when the parent dies, however it dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None
) -> subprocess.Popen[bytes]:
    """A process in its own session that ends with this one; its output is added to the log.

    Only for single-threaded parents: it runs Python code after a fork.
    """
    with nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
        )


def end_session(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process of `spawn` and its session: SIGTERM, and SIGKILL after the grace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return


@dataclass
class Launch:
    """One torchrun, in its own session, and what it started."""

    process: subprocess.Popen[bytes]
    mark: str
    grace_s: float

    @property
    def pid(self) -> int:
        """Torchrun's."""
        return self.process.pid

    def poll(self) -> int | None:
        """Return code once torchrun has ended (negative: killed by that signal), else None."""
        return self.process.poll()

    def stop(self) -> None:
        """End torchrun, which passes SIGTERM on to its ranks; returns when all are gone."""
        end_session(self.process, self.grace_s)
        self.sweep()

    def sweep(self) -> list[int]:
        """Kill ranks that outlived torchrun; returns those."""
        left = [pid for pid in launched(self.mark + ";") if not _is_sidecar(pid)]
        _end_all(left, signal.SIGKILL, self.grace_s)
        return left


@dataclass
class Launcher:
    """Starts torchrun for one group, each time with a new rendezvous port."""

    group: str
    nproc: int
    arguments: Sequence[str]
    monitor: str = ""
    log_dir: Path | None = None
    grace_s: float = 5.0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0

    def command(self) -> list[str]:
        """The command: torchrun chooses a free port itself and does not restart ranks."""
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={self.nproc}",
            "--max-restarts=0",
            f"--shutdown-timeout={max(1, round(self.grace_s / 2))}",
            "-m",
            "lightkeeper.trainer.train",
            *self.arguments,
        ]

    def environment(self, host: str, mark: str) -> dict[str, str]:
        environ = {
            **os.environ,
            "LIGHTKEEPER_HOST": host,
            "REPLICA_GROUP": self.group,
            MARK: mark + ";",
        }
        for stale in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(stale, None)
        environ.setdefault("OMP_NUM_THREADS", "1")
        if self.monitor:
            environ["LIGHTKEEPER_MONITOR"] = self.monitor
        return environ

    def start(self, host: str) -> Launch:
        self._count += 1
        mark = f"{self.run_id}.{self._count}"
        log = None
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            log = self.log_dir / f"{self.group}.log"
        process = spawn(self.command(), self.environment(host, mark), log)
        return Launch(process, mark, self.grace_s)

    def close(self) -> list[int]:
        """End all that this supervisor's launches left, sidecars too; returns those."""
        left = list(launched(self.run_id + "."))
        stubborn = _end_all(left, signal.SIGTERM, self.grace_s)
        _end_all(stubborn, signal.SIGKILL, self.grace_s)
        return left


# -- command line ---------------------------------------------------------------------------

_EPILOG = """\
example:
  python -m lightkeeper.trainer.supervisor --group rg_1 --hosts host-1,spare-1 \\
      --monitor http://127.0.0.1:8470 -- --step-time 0.2 --steps 1000
Everything after -- goes to `python -m lightkeeper.trainer.train` (see its --help).
Ranks inherit this environment: set TORCHFT_LIGHTHOUSE, and GLOO_SOCKET_IFNAME=lo on one machine.

exit status: 0 the training finished; 2 wrong use; 143 ended by SIGTERM, 130 by SIGINT.
"""


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    group: str = option("stable name of the replica group: rg_1", metavar="NAME", required=True)
    hosts: str = option("hosts in order of preference, by comma", metavar="H,H", required=True)
    monitor: str = option(
        "whom to ask for admission (of two, both: A,B); without it all are admitted (default)",
        "",
        metavar="URL",
    )
    nproc: int = option("ranks in the group", 1, least=1)
    log_dir: Path | None = option("output to DIR/GROUP.log instead of here", metavar="DIR")
    status_file: Path | None = option("append events as JSON lines", metavar="FILE")
    backoff_s: float = option(
        "pause before a restart; doubles up to 30 s while launches are short", 1.0
    )
    grace_s: float = option("from SIGTERM to SIGKILL when ending processes", 5.0, least=0.1)
    arguments: Sequence[str] = ()
    """For each rank."""

    @property
    def host_names(self) -> list[str]:
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


def supervisor_options(arguments: Sequence[str] | None = None) -> SupervisorOptions:
    """Checked options; wrong use ends the process here, not in every launch."""
    about = (
        "Keep one replica group running: start torchrun on the first host that the monitor admits, "
        "and again, after asking again, whenever it left."
    )
    top = parser_of(SupervisorOptions, "lightkeeper.trainer.supervisor", about, _EPILOG)
    top.add_argument(
        "arguments", nargs="*", metavar="-- ARGS", help="for python -m lightkeeper.trainer.train"
    )
    opt = SupervisorOptions(**vars(top.parse_args(arguments)))
    try:
        monitors_of(opt.monitor)
    except ValueError as error:
        top.error(f"--monitor: {error}")
    if not opt.host_names:
        top.error("--hosts names no host")
    if "TORCHFT_LIGHTHOUSE" not in os.environ:
        top.error("TORCHFT_LIGHTHOUSE=http://host:port is not set")
    trainer_options.rank_options(opt.arguments)
    return opt


def main(arguments: Sequence[str] | None = None) -> int:
    opt = supervisor_options(arguments)
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signalled, _frame: received.append(signalled))

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not received and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return bool(received)

    record = StatusFile(opt.status_file, group=opt.group)

    def emit(event: str, **facts: object) -> None:
        record.write(event, **facts)
        words = "  ".join(f"{key}={value}" for key, value in facts.items())
        print(f"supervisor {opt.group}: {event}  {words}", file=sys.stderr, flush=True)

    supervisor = Supervisor(
        opt.host_names,
        launcher=Launcher(
            opt.group, opt.nproc, opt.arguments, opt.monitor, opt.log_dir, opt.grace_s
        ),
        admission=asker(opt.monitor, opt.group),
        emit=emit,
        wait=wait,
        backoff_s=opt.backoff_s,
    )
    finished = supervisor.run()
    return 0 if finished else 128 + received[0]


if __name__ == "__main__":
    sys.exit(main())
