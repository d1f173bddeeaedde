"""`lightkeeper admit`: asks whether a group may start on this host, then becomes the command.

It *becomes* it (exec): same pid, standard input, open files, limits and signals, and its exit
status is the command's own. What python itself changed on its way here (SIGPIPE ignored, LC_CTYPE
set where there was no locale) is changed back.

Beside the ranks and not in the monitor's package: it starts before each group, so it must be quick
and need nothing but the standard library and the wire.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from worker_server.admission import (
    REFUSED_STATUS,
    Admission,
    Admitted,
    Away,
    Refused,
    UrlError,
    ask,
    monitors_of,
    until,
)
from worker_server.identity import POD, group_of, host_of

_USAGE_STATUS = 2
_CANNOT_RUN_STATUS = 126
_NOT_FOUND_STATUS = 127
"""Of a command that cannot be started: what a shell, env and nohup end with."""
_ASK_S = 5.0
"""For all monitors together. Longer waits for the dead, shorter starts groups on quarantined hosts
while a monitor is busy."""
_LAST_WORD_S = 300.0
"""A refusal stands for so long after the monitors went away: they may only be restarting. Then the
group starts: training does not depend on the monitor."""
_JITTER = 0.5
"""Every pause is up to so much shorter or longer: a thousand launchers do not ask at once."""
_HEEDED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by every python, and the default for everybody else."""

_ABOUT = """\
Ask the monitor whether a replica group may start on this host, then become the command. A host or
group in quarantine is refused; a monitor that is away admits everybody.
"""
_EXAMPLES = """\
examples:
  refused: status 75, and nothing runs:
    lightkeeper admit -- torchrun --nproc-per-node 8 train.py
  refused: wait, for an hour at most:
    lightkeeper admit --wait --timeout 3600 -- torchrun --nproc-per-node 8 train.py
  two monitors:
    srun lightkeeper admit --monitor http://head:8470,http://spare:8470 -- torchrun train.py
  without a command, only the answer:
    lightkeeper admit --host node17 --group rg_1 || echo "not there"

exit status: the command's own; 75 refused (EX_TEMPFAIL: try again later, or elsewhere); 2 wrong
use; 126 or 127 the command cannot be run or is not there. See docs/quarantine.md.
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_STATUS, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    host: str
    group: str | None
    monitors: tuple[str, ...]
    wait: bool
    timeout_s: float | None
    poll_s: float
    command: tuple[str, ...]


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options in front of `--`."""
    made = _Parser(
        prog="lightkeeper admit",
        usage="%(prog)s [OPTIONS] [-- COMMAND [ARGS ...]]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--host",
        metavar="NAME",
        help="this host, as the WorkerServer reports it (default: LIGHTKEEPER_HOST, "
        f"SLURMD_NODENAME, K8S_NODE_NAME, the host's name; here: {host_of(environ)})",
    )
    add("--group", metavar="NAME", help="the replica group (default: REPLICA_GROUP)")
    add(
        "--monitor",
        metavar="URL[,URL]",
        help="the monitors, in the order in which they are asked (default: LIGHTKEEPER_MONITOR)",
    )
    add(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="while refused, wait and ask again (default: end with status 75)",
    )
    add(
        "--timeout",
        type=float,
        metavar="S",
        help="with --wait: for at most so long, then status 75",
    )
    add("--poll", type=float, metavar="S", default=10.0, help="pause between questions (10)")
    return made


def options(words: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The command line; wrong use ends the process with status 2."""
    at = words.index("--") if "--" in words else len(words)
    top = parser(environ)
    args, extra = top.parse_known_args(words[:at])
    if extra:
        top.error(f"{extra[0]!r} is no option: a command comes after --")
    named = args.monitor if args.monitor is not None else environ.get("LIGHTKEEPER_MONITOR", "")
    try:
        monitors = monitors_of(named)
    except UrlError as exc:
        top.error(str(exc))
    if args.timeout is not None and not args.timeout >= 0:
        top.error(f"--timeout is {args.timeout:g}, expected seconds")
    if not 0.05 <= args.poll <= 3600:
        top.error(f"--poll is {args.poll:g}, expected 0.05 to 3600 seconds")
    return Options(
        host=args.host or host_of(environ),
        group=args.group or group_of(environ),
        monitors=monitors,
        wait=args.wait,
        timeout_s=args.timeout,
        poll_s=args.poll,
        command=tuple(words[at + 1 :]),
    )


@dataclass(slots=True)
class Gatekeeper:
    """Asks until there is an answer to go by. What it touches is handed to it."""

    options: Options
    ask: Callable[[], Admission]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    _said: object = None

    def admitted(self) -> bool:
        """Whether the group may start; False once it is refused for good."""
        began_s = self.clock()
        refused_s: float | None = None
        while True:
            answer = self.ask()
            now_s = self.clock()
            match answer:
                case Admitted():
                    if refused_s is not None:
                        self.say(f"admitted after {now_s - began_s:.0f} s")
                    return True
                case Refused():
                    refused_s = now_s
                    self._tell_refusal(answer)
                case Away() if refused_s is None or now_s - refused_s >= _LAST_WORD_S:
                    self.say(f"the monitor is away ({answer.reason}): starting without its word")
                    return True
                case Away():
                    self._tell(
                        f"the monitor is away ({answer.reason}): its refusal stands for "
                        f"{_LAST_WORD_S:.0f} s",
                        "away",
                    )
            if not self.options.wait:
                return False
            pause_s = self.options.poll_s * (1 + _JITTER * (2 * self.chance() - 1))
            if self.options.timeout_s is not None:
                left_s = began_s + self.options.timeout_s - now_s
                if left_s <= 0:
                    self.say(f"still refused after {now_s - began_s:.0f} s: giving up")
                    return False
                pause_s = min(pause_s, left_s)
            self.sleep(pause_s)

    def _tell_refusal(self, answer: Refused) -> None:
        then = "waiting" if self.options.wait else f"status {REFUSED_STATUS}"
        self._tell(f"refused until {until(answer.until_s)}: {answer.reason} ({then})", answer)

    def _tell(self, text: str, key: object) -> None:
        """Once per change."""
        if key != self._said:
            self.say(text)
        self._said = key


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"lightkeeper admit: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed: the answer counts, not the words
        pass


def _as_started() -> dict[bytes, bytes]:
    """The environment as it was when this process began: python may have added LC_CTYPE."""
    now = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            first = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)
    except OSError:
        return now
    if b"LC_CTYPE" not in first:
        now.pop(b"LC_CTYPE", None)
    return now


def become(command: Sequence[str], environ: Mapping[bytes, bytes]) -> int:
    """Run the command in place of this process; only a command that cannot be run returns."""
    for number in _HEEDED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), environ)  # noqa: S606  it is what we were asked to run
    except FileNotFoundError:
        _say(f"{command[0]}: no such command")
        return _NOT_FOUND_STATUS
    except (OSError, ValueError) as exc:
        _say(f"cannot run {command[0]}: {getattr(exc, 'strerror', None) or exc}")
        return _CANNOT_RUN_STATUS


def main(words: Sequence[str]) -> int:
    """Ask, then become the command; the exit status when there is none, or it may not run."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends us as it would end the command
    told = options(words, os.environ)
    if told.monitors:
        if told.host.startswith(POD):
            _say(f"the node of {told.host} is not known: set LIGHTKEEPER_HOST from spec.nodeName")
        question = partial(ask, list(told.monitors), told.host, told.group, _ASK_S)
        keeper = Gatekeeper(told, question, _say)
        if not keeper.admitted():
            return REFUSED_STATUS
    else:
        _say("no monitor is named (--monitor, LIGHTKEEPER_MONITOR): starting without asking")
    return become(told.command, _as_started()) if told.command else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
