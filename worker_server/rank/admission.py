"""The question before a group starts: may it run on this host?

Three answers, and the third is no error: if no monitor answers, everybody is admitted, because
training never depends on the monitor. The caller waits for `timeout_s` at most, whatever the
network and the name service do. Two ask:

- A launcher, through `lightkeeper run`, which then *becomes* the command (exec): same pid, standard
  input, open files, limits and signals, and the exit status is the command's own. What python
  itself changed at its start (SIGPIPE ignored, LC_CTYPE set where there was no locale) is changed
  back.
- A rank before it joins, with `LIGHTKEEPER_ADMISSION=warn|refuse`. The one place in this package
  that may end a rank, and only on request: on a host in quarantine, a launcher may start it anyway
  (it does not ask, or its scheduler does not know), and it would rejoin the quorum. Before training
  starts an end costs nothing; later nothing here ends a rank.

The standard library and the wire only: a launcher asks before every start.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import math
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from msgspec import MsgspecError, Struct, structs
from msgspec.json import decode

from lightkeeper.worker_server import home
from lightkeeper.worker_server.command import OneLineParser, become
from lightkeeper.worker_server.plain_text import FORMS, LEVELS, JsonFormatter, escaped
from lightkeeper.worker_server.rank import identity
from lightkeeper.worker_server.rank.retries import quorum_retries
from lightkeeper.worker_server.rank.settings import monitors_in, monitors_of
from lightkeeper.worker_server.wire import PATH_ADMISSION

REFUSED_STATUS = 75
"""Exit status of a refused launcher or rank: EX_TEMPFAIL of sysexits.h, try again later."""
_EACH_S = 2.0
"""Limit for each of several monitors. One that is up answers within milliseconds."""


class AdmissionAnswer(Struct, frozen=True):
    """A monitor's answer: may the host run the group now?"""

    admit: bool
    reason: str = ""
    until_s: float | None = None
    """Unix time at which a refusal ends; None: a person releases it."""


class MonitorAway(NamedTuple):
    """No monitor gave a usable answer."""

    reason: str


def ask_monitors(
    monitors: list[str],
    host: str,
    group: str | None,
    timeout_s: float,
    unfit: Callable[[], str | None] = lambda: None,
) -> AdmissionAnswer | MonitorAway:
    """The first usable answer of a monitor; never raises. That monitor moves to the front of the
    list, so that the next call does not wait for one that is away.

    All of it runs in its own thread: no socket deadline covers a name service that hangs, or a
    server that answers a byte a second. `unfit`: why no monitor is to be asked now.
    """
    if (why := unfit()) is not None:
        return MonitorAway(f"{monitors[0]}: {why}")
    answers: queue.SimpleQueue[AdmissionAnswer | MonitorAway] = queue.SimpleQueue()
    threading.Thread(
        target=lambda: answers.put(_ask_all(monitors, host, group, timeout_s)),
        name="admission",
        daemon=True,
    ).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return MonitorAway(f"no answer of {' or '.join(monitors)} within {timeout_s:g} s")


def _ask_all(
    monitors: list[str], host: str, group: str | None, timeout_s: float
) -> AdmissionAnswer | MonitorAway:
    end_s, reasons = time.monotonic() + timeout_s, []
    for url in tuple(monitors):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        answer = _ask_one(url, host, group, min(_EACH_S, left_s))
        if not isinstance(answer, MonitorAway):
            monitors[:] = [url, *(other for other in monitors if other != url)]
            return answer
        reasons.append(f"{url}: {answer.reason}")
    return MonitorAway("; ".join(reasons) or "no time left to ask")


def _ask_one(
    url: str, host: str, group: str | None, timeout_s: float
) -> AdmissionAnswer | MonitorAway:
    query = urlencode({"host": host, **({} if group is None else {"group": group})})
    try:
        status, body = home.request("GET", f"{url}{PATH_ADMISSION}?{query}", timeout_s)
        if status != http.HTTPStatus.OK:
            return MonitorAway(f"it answers {status}")
        answer = decode(body, type=AdmissionAnswer)
    except TimeoutError:
        return MonitorAway("no answer in time")
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return MonitorAway("its answer is no admission")
    except (OSError, http.client.HTTPException, ValueError) as exc:
        return MonitorAway(" ".join(f"{type(exc).__name__}: {exc}".split()))
    reason = " ".join(answer.reason.split())
    return structs.replace(answer, reason=reason or ("" if answer.admit else "no reason given"))


def _unfit(environ: Mapping[str, str]) -> Callable[[], str | None]:
    return (lambda: None) if "LIGHTKEEPER_MONITOR" in environ else home.not_ours


def until(at_s: float | None) -> str:
    """The end of a refusal: a local date and time, or what ends it."""
    if at_s is None:
        return "a person releases it"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at_s))
    except (ValueError, OverflowError, OSError):
        return "some time"


# -- a rank asks -------------------------------------------------------------------------------

_JOIN_WAIT_S = 2.0
"""For the answer. Longer delays every start while the monitor is dead."""


def ask_to_join(environ: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Ask the monitor whether this rank may train here.

    Raises:
        SystemExit: status 75; it may not, and the environment says `refuse`.
    """
    wish = environ["LIGHTKEEPER_ADMISSION"]
    if wish not in ("warn", "refuse"):
        warn(f"LIGHTKEEPER_ADMISSION={wish!r} is none of off, warn, refuse: taken for off")
        return
    try:
        host, monitors = identity.node_of(environ), list(monitors_of(monitors_in(environ)))
        if not monitors:
            return
        group = identity.group_named_by(environ)
        answer = ask_monitors(monitors, host, group, _JOIN_WAIT_S, _unfit(environ))
    except Exception as exc:  # noqa: BLE001  training continues without us
        warn(f"lightkeeper did not ask for admission: {exc!r}")
        return
    if isinstance(answer, MonitorAway) or answer.admit:
        return
    refusal = f"this rank is refused on {host} until {until(answer.until_s)}: {answer.reason}"
    if wish != "refuse":
        warn(f"lightkeeper: {refusal}; it trains all the same (LIGHTKEEPER_ADMISSION={wish})")
    elif threading.current_thread() is not threading.main_thread():
        warn(
            f"lightkeeper: {refusal}; it trains all the same: attached in another thread than main"
        )
    else:
        _write(f"lightkeeper: {refusal}; ending with status {REFUSED_STATUS}")
        raise SystemExit(REFUSED_STATUS)


def _write(line: str) -> None:
    try:
        sys.stderr.write(escaped(line) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed or None: the status counts
        pass


# -- a launcher asks ---------------------------------------------------------------------------

_USAGE_STATUS = 2
_ASK_S = 5.0
"""Limit for all monitors together. Longer waits for dead ones; shorter starts groups on quarantined
hosts while a monitor is busy."""
_LAST_WORD_S = 300.0
"""A refusal holds for this long after the monitors went away: they may only be restarting. Then the
group starts: training does not depend on the monitor."""
_JITTER = 0.5
"""Each pause is up to this share shorter or longer: a thousand launchers must not ask at once."""

_ABOUT = """\
Run a command whose ranks are watched: with LIGHTKEEPER_ATTACH=1, so that each rank attaches itself
when it imports torch, and with what the options say in place of their variables. First the monitor
is asked whether the group may start on this host: a host or group in quarantine is refused; a
monitor that is away admits everybody.
"""
_EXAMPLES = """\
examples:
  the monitor runs on this host (lightkeeper monitor):
    lightkeeper run -- torchrun --nproc-per-node 8 train.py
  or elsewhere, with the same token here:
    lightkeeper run --monitor http://head:8470 --token-file token -- torchrun train.py
  refused (status 75, and nothing runs): wait instead, for an hour at most:
    lightkeeper run --wait --timeout 3600 -- torchrun --nproc-per-node 8 train.py
  two monitors:
    srun lightkeeper run --monitor http://head:8470,http://spare:8470 -- torchrun train.py
  without a command, only the answer:
    lightkeeper run --host node17 --group rg_1 || echo "not there"

exit status: the command's own; 75 refused (EX_TEMPFAIL: try again later, or elsewhere); 2 wrong
use; 126 or 127 the command cannot be run or is not there. See docs/deploy.md.
"""


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options before `--`."""
    parser = OneLineParser(
        prog="lightkeeper run",
        usage="%(prog)s [OPTIONS] [-- COMMAND [ARGS ...]]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    for flag, metavar, says in (
        ("--host", "NAME", ("this host, as the WorkerServer reports it (default: LIGHTKEEPER_HOST, "
         f"SLURMD_NODENAME, K8S_NODE_NAME, the host's name; here: {identity.node_of(environ)})")),
        ("--group", "NAME", "the replica group (default: REPLICA_GROUP)"),
        ("--job", "NAME", "name of the job (default: LIGHTKEEPER_JOB)"),
        ("--run", "NAME", "of this start, equal on all its hosts (LIGHTKEEPER_RUN)"),
        ("--monitor", "URL[,URL]", ("the monitors, in the order in which they are asked (default: "
         f"LIGHTKEEPER_MONITOR, else {home.DEFAULT_MONITOR})")),
        ("--token-file", "FILE", ("holds the monitor's token (default: LIGHTKEEPER_TOKEN_FILE, "
         f"else this user's: {home.own_token_file(environ)})")),
    ):  # fmt: skip
        add(flag, metavar=metavar, help=says)
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
        default=math.inf,
        help="with --wait: for at most so long, then status 75",
    )
    add("--poll", type=float, metavar="S", default=10.0, help="pause between questions (10)")
    for flag, choices, says in (
        ("--log-format", FORMS, "json: one object a line, here and in the WorkerServers' logs"),
        ("--log-level", LEVELS, "of the WorkerServers' logs (default: info)"),
    ):
        usual = environ.get(variable := f"LIGHTKEEPER_{flag[2:].upper().replace('-', '_')}")
        add(flag, choices=choices, default=usual, help=f"{says} ({variable})")
    add(
        "--preflight",
        choices=("warn", "refuse"),
        nargs="?",
        const="warn",
        help="first measure this host, against the launch's others, for at most a minute: say what "
        "stands out, or end with status 75 if it is this host (lightkeeper check host --help)",
    )
    return parser


def options(words: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The command line, with `monitors`, `command` and its variables' `changes`; else exit 2."""
    at = words.index("--") if "--" in words else len(words)
    top = parser(environ)
    args, extra = top.parse_known_args(words[:at])
    if extra:
        top.error(f"{extra[0]!r} is no option: a command comes after --")
    token_file = args.token_file and os.path.abspath(args.token_file)
    named = {
        "LIGHTKEEPER_MONITOR": args.monitor, "LIGHTKEEPER_TOKEN_FILE": token_file,
        "LIGHTKEEPER_JOB": args.job, "LIGHTKEEPER_RUN": args.run,
        "LIGHTKEEPER_HOST": args.host, "REPLICA_GROUP": args.group,
        "LIGHTKEEPER_LOG_FORMAT": args.log_format, "LIGHTKEEPER_LOG_LEVEL": args.log_level,
    }  # fmt: skip
    changes = {name: value for name, value in named.items() if value is not None}
    environ = {**environ, **changes}
    try:
        args.monitors = monitors_of(monitors_in(environ))
        if token_file is not None:
            home.read_token_file(Path(token_file))
    except (OSError, ValueError) as exc:
        top.error(str(exc))
    if not args.timeout >= 0:
        top.error(f"--timeout is {args.timeout:g}, expected seconds")
    if not 0.05 <= args.poll <= 3600:
        top.error(f"--poll is {args.poll:g}, expected 0.05 to 3600 seconds")
    args.host, args.group = identity.node_of(environ), identity.group_named_by(environ)
    args.command = words[at + 1 :]
    args.changes = {
        "LIGHTKEEPER_ATTACH": environ.get("LIGHTKEEPER_ATTACH", "1"),
        **quorum_retries(environ),
        **changes,
    }
    return args


def wait_until_admitted(
    ask: Callable[[], AdmissionAnswer | MonitorAway],
    say: Callable[[str], None],
    asked: argparse.Namespace,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> bool:
    """Ask until the answer is final: may the group start? Each change is reported once."""
    began_s, refused_s, said = clock(), None, ""
    while True:
        answer, now_s = ask(), clock()
        match answer:
            case AdmissionAnswer(admit=True):
                if refused_s is not None:
                    say(f"admitted after {now_s - began_s:.0f} s")
                return True
            case MonitorAway() if refused_s is None or now_s - refused_s >= _LAST_WORD_S:
                say(f"the monitor is away ({answer.reason}): starting without its word")
                return True
            case MonitorAway():
                text = f"the monitor is away ({answer.reason}): its refusal stands for "
                text += f"{_LAST_WORD_S:.0f} s"
            case AdmissionAnswer():
                refused_s = now_s
                then = "waiting" if asked.wait else f"status {REFUSED_STATUS}"
                text = f"refused until {until(answer.until_s)}: {answer.reason} ({then})"
        if text != said:
            say(text)
        said = text
        if not asked.wait:
            return False
        left_s = began_s + asked.timeout - now_s
        if left_s <= 0:
            say(f"still refused after {now_s - began_s:.0f} s: giving up")
            return False
        sleep(min(left_s, asked.poll * (1 + _JITTER * (2 * chance() - 1))))


def _is_no_rank(command: Sequence[str]) -> bool:
    """True if a command is python with its own script, which no launcher makes a rank."""
    program = identity.program_of(command)
    return (
        Path(command[0]).name.startswith("python")
        and identity.launcher_of(os.environ) is None
        and program != "lightkeeper.worker_server"
        and not identity.starts_ranks(program)
    )


def _say(form: str | None, text: str) -> None:
    if form == "json":
        line = {"name": "lightkeeper.run", "levelname": "WARNING", "msg": text}
        _write(JsonFormatter().format(logging.makeLogRecord(line)))
    else:
        _write(f"lightkeeper run: {text}")


def main(words: Sequence[str]) -> int:
    """Ask, then become the command. Returns only if there is none, or it may not run."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends us as it would the command
    chosen = options(words, os.environ)
    say = partial(_say, chosen.log_format)
    if chosen.monitors:
        if chosen.host.startswith(identity.POD):
            say(f"the node of {chosen.host} is not known: set LIGHTKEEPER_HOST from spec.nodeName")
        unfit = _unfit({**os.environ, **chosen.changes})
        question = partial(
            ask_monitors, list(chosen.monitors), chosen.host, chosen.group, _ASK_S, unfit
        )
        if not wait_until_admitted(question, say, chosen):
            return REFUSED_STATUS
    else:
        say("LIGHTKEEPER_MONITOR is empty: starting without asking, and nobody watches")
    if chosen.preflight:
        from lightkeeper.worker_server.check_host import before_start  # noqa: PLC0415

        fit = before_start(chosen.command, {**os.environ, **chosen.changes}, say)
        if not fit and chosen.preflight == "refuse":
            say(f"preflight: this host is unfit (status {REFUSED_STATUS})")
            return REFUSED_STATUS
    if chosen.command and _is_no_rank(chosen.command):
        say(
            "no launcher (torchrun, srun, mpirun) makes this python a rank: it is watched once it "
            "calls init_process_group, or attaches; or: lightkeeper run -- "
            "python -m lightkeeper.worker_server SCRIPT"
        )
    return become(chosen.command, chosen.changes) if chosen.command else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
