"""Keeps one replica group running: torchrun on an admitted host, again whenever it left.

Theory of operation. Before each launch the monitor is asked whether the host is admitted;
quarantine works because of this question. A refused host makes way for the next of the list;
when all refuse, the supervisor waits and asks again. Hosts here are names, as a scheduler's
would be: the ranks run on this machine in any case, and carry the name in LIGHTKEEPER_HOST.

A launch is over when torchrun is gone and none of its ranks is left (see `launch`).

Standard library; no torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trainer import options as trainer_options
from trainer.faults import ENVIRONMENT, FaultError, parse_specs
from trainer.launch import Launch, Launcher, TorchrunLauncher
from trainer.options import OneLineParser
from trainer.status import StatusFile
from worker_server.admission import Admission, Admitted, Away, Refused, ask, monitors_of

_POLL_S: Final = 0.2
_QUICK_S: Final = 10.0
"""A launch that left sooner than this doubles the back-off."""
_BACKOFF_LIMIT_S: Final = 30.0
_ASK_S: Final = 5.0
"""For all monitors together."""


def asker(monitors: str, group: str) -> Callable[[str], Admission]:
    """Asks the monitors, `URL` or `URL,URL`, about a host; all are admitted where there is none.

    Raises:
        ValueError: one is no address.
    """
    urls = list(monitors_of(monitors))
    if not urls:
        return lambda _: Admitted("no monitor configured")
    return lambda host: ask(urls, host, group, _ASK_S)


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
                        # Nobody to ask: rather a host that was not refused when last asked.
                        return min(self._hosts, key=lambda name: name in self._refusals)
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
    top = OneLineParser(
        prog="trainer.supervisor",
        description="Keep one replica group running: start torchrun on the first host that the "
        "monitor admits, and again, after asking again, whenever it left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--group", required=True, metavar="NAME", help="stable name of the replica group: rg_1")
    add("--hosts", required=True, metavar="H,H", help="hosts in order of preference, by comma")
    add(
        "--monitor",
        metavar="URL",
        help="whom to ask for admission (of two, both: A,B); without it all are admitted",
    )
    add("--nproc", type=int, default=1, metavar="N", help="ranks in the group (default 1)")
    add("--log-dir", type=Path, metavar="DIR", help="output to DIR/GROUP.log instead of here")
    add("--status-file", type=Path, metavar="FILE", help="append events as JSON lines")
    add(
        "--backoff",
        type=float,
        default=1.0,
        metavar="S",
        dest="backoff_s",
        help="pause before a restart; doubles up to 30 s while launches are short (default 1)",
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
    try:
        monitors_of(args.monitor or "")
    except ValueError as error:
        top.error(f"--monitor: {error}")
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

    received: list[int] = []

    def ask_to_stop(number: int, _frame: object) -> None:
        received.append(number)

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not received and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return bool(received)

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
        admission=asker(args.monitor or "", args.group),
        emit=emit,
        wait=wait,
        backoff_s=args.backoff_s,
    )
    finished = supervisor.run()
    return 0 if finished else 128 + received[0]


if __name__ == "__main__":
    sys.exit(main())
