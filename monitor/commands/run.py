"""`lightkeeper monitor`: options and process."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from lightkeeper.monitor.act.notices import Sink
from lightkeeper.monitor.commands.checks import notify_options, scheduler_options
from lightkeeper.monitor.commands.command import (
    DONE,
    FAILED,
    FILE,
    CommandError,
    Within,
    command,
    gathered,
    is_plain,
    logs,
    make_token,
    option,
    read_secret,
    read_text,
    token_file,
    web_url,
)
from lightkeeper.monitor.commands.policy import refused, threshold, thresholds
from lightkeeper.monitor.decide.rules import PolicyError
from lightkeeper.monitor.journal.writer import Limits
from lightkeeper.monitor.model.config import ConfigError
from lightkeeper.monitor.model.escalation import Timeouts
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.rulebook import Rulebook, effective
from lightkeeper.monitor.service import (
    TOKENLESS,
    Options,
    Service,
    StartError,
    beside,
    for_people,
    reach,
)
from lightkeeper.monitor.show.metrics import GROUP_SERIES, RANK_SERIES, Bounds
from lightkeeper.monitor.show.web.server import is_loopback, parse_bind
from lightkeeper.monitor.store.place import StoreError, StorePlace, parse_place
from lightkeeper.worker_server import home

# -- what the options mean -------------------------------------------------------------------------


def _place(text: str) -> StorePlace:
    try:
        return parse_place(text)
    except StoreError as exc:
        raise CommandError(str(exc)) from exc


def _default_store() -> str:
    try:
        return str(home.state_folder(os.environ) / "monitor.db")
    except RuntimeError as exc:
        raise CommandError("this user has no home: set XDG_STATE_HOME") from exc


def read_group_tokens(group_tokens: Path | None) -> Mapping[GroupName, str]:
    """Lines of `GROUP TOKEN`; several groups may share one. Empty: no file.

    Raises:
        CommandError: the file cannot be read, is open to others, or has a bad line.
    """
    tokens: dict[GroupName, str] = {}
    if (path := group_tokens) is None:
        return tokens
    text = read_text(path)
    if home.is_open(path.stat()):
        raise CommandError(f"{path} holds secrets that others can read: chmod 600 {path}")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and (len(words) != 2 or words[0] in tokens or not is_plain(words[1])):
            raise CommandError(f"{path}:{number} is not a new GROUP and its TOKEN")
        if words:
            tokens[GroupName(words[0])] = words[1]
    return tokens


def parse_budget(text: str) -> int:
    """`4/hour` or `4`.

    Raises:
        CommandError: neither.
    """
    number = text.removesuffix("/hour").removesuffix("/h")
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise CommandError(f"--budget is {text!r}, expected N/hour, such as 4/hour")
    return int(number)


def _rules(
    *, tick_s: float | None, min_replicas: int | None, budget_per_hour: int | None, observe: bool,
    policy: Path | None, changed: tuple[str, ...],
) -> Rulebook:  # fmt: skip
    chosen: dict[str, Any] = {
        "tick_s": tick_s,
        "min_replicas": min_replicas,
        "budget_per_hour": budget_per_hour,
        "observe": observe or None,
        **thresholds(changed),
    }
    try:
        return Rulebook(effective(policy, chosen, loaded_s=time.time()), chosen)
    except ConfigError as exc:
        raise CommandError(str(exc)) from exc
    except PolicyError as exc:
        raise refused(exc) from exc


_OTLP: Final = "OTEL_EXPORTER_OTLP"


def signals_for_otlp(environ: Mapping[str, str]) -> frozenset[str]:
    """What OpenTelemetry's own variables ask for, if by HTTP: `traces`, `logs`."""

    def said(name: str, what: str) -> str | None:
        return environ.get(f"{_OTLP}_{name.upper()}_{what}") or environ.get(f"{_OTLP}_{what}")

    return frozenset(
        name
        for name in ("traces", "logs")
        if environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get(f"OTEL_{name.upper()}_EXPORTER", "otlp") == "otlp"
        and said(name, "ENDPOINT")
        and said(name, "PROTOCOL") in (None, "http/protobuf")
    )


# -- the command -----------------------------------------------------------------------------------

_rule_options: Final = gathered(
    "rules",
    _rules,
    option("--tick", "tick_s", type=float, metavar="S", help="seconds between sweeps (1.0)"),
    option("--min-replicas", type=int, metavar="N", help="healthy groups that must remain (1)"),
    option("--budget", "budget_per_hour", type=parse_budget, metavar="N/hour",
           help="most evictions in any hour (4/hour)"),
    option("--observe", is_flag=True, help="say what would be evicted, and evict nothing"),
    option("--policy", type=FILE, metavar="FILE",
           help="TOML file of what may be done about which fault, thresholds and "
           "budgets (examples/policy.toml); the command line overrides it"),
    threshold("any other threshold of monitor/model/config.py, repeatable"),
)  # fmt: skip
_journal_options: Final = gathered(
    "limits",
    lambda journal_mb, journal_file_hours: Limits(
        int(journal_mb * 1e6), int(journal_mb / 8 * 1e6), journal_file_hours * 3600.0
    ),
    option("--journal-mb", type=Within(1, 1e6), metavar="MB", default=256, section="Journal",
           help="size of all journal files, about eight; the oldest is removed"),
    option("--journal-file-hours", type=Within(0.001, 24 * 366), metavar="H", default=1.0,
           section="Journal",
           help="begin a new file at least this often; each can be replayed alone"),
)  # fmt: skip
_series_options: Final = gathered(
    "bounds",
    Bounds,
    option("--rank-series", "ranks", type=Within(0, 1e6, int), metavar="N", default=RANK_SERIES,
           section="Metrics",
           help="most ranks with series of their own on /metrics: first the accused, then the "
           "unhealthy, then those that work longest (0: none); each rank also has its own page"),
    option("--group-series", "groups", type=Within(0, 1e6, int), metavar="N", default=GROUP_SERIES,
           section="Metrics",
           help="most replica groups with series of their own: first the accused, the unhealthy, "
           "then by name (0: none)"),
)  # fmt: skip


@command()
@option("--lighthouse", type=lambda url: web_url("--lighthouse", url), metavar="URL",
        envvar="TORCHFT_LIGHTHOUSE",
        help="TorchFT's Lighthouse; may come up later")  # fmt: skip
@option("--gate", type=lambda url: web_url("--gate", url), metavar="URL", envvar="LIGHTKEEPER_GATE",
        help="admin port of `lightkeeper gate`, where one stands in front of the Lighthouse: it "
        "refuses groups that were evicted or quarantined")  # fmt: skip
@option("--prometheus", type=lambda url: web_url("--prometheus", url), metavar="URL",
        envvar="LIGHTKEEPER_PROMETHEUS",
        help="ask this Prometheus, too, what is wrong with the ranks' hosts")  # fmt: skip
@gathered("prometheus_auth", partial(read_secret, "LIGHTKEEPER_PROMETHEUS_AUTH"), option(
    "--prometheus-auth-file", "path", type=FILE, metavar="FILE",
    help="holds the Authorization header for it, such as 'Bearer TOKEN' (default: the file named "
    "by LIGHTKEEPER_PROMETHEUS_AUTH_FILE, or LIGHTKEEPER_PROMETHEUS_AUTH)"))  # fmt: skip
@option("--bind", metavar="HOST:PORT", default=f"127.0.0.1:{home.DEFAULT_PORT}",
        help="where to serve; any other host than loopback needs a token")  # fmt: skip
@option("--store", type=_place, metavar="PATH|URL", envvar="LIGHTKEEPER_STORE",
        default=_default_store,
        show_default="in your state folder",
        help="what survives a restart: a SQLite file, or postgresql://USER@HOST/DATABASE; of "
        "several monitors on one store one acts, the others stand by")  # fmt: skip
@option("--evidence-dir", "evidence", type=FILE, metavar="DIR",
        help="folder of evidence bundles (default: beside the store; --set evidence_count=0: "
        "none)")  # fmt: skip
@_rule_options
@gathered("timeouts", lambda quarantine_hours: Timeouts(
    quarantine_s=quarantine_hours * 3600.0 or None), option(
    "--quarantine-hours", type=Within(0, 24 * 366), metavar="H", default=24.0,
    help="how long the host of an evicted group is refused (0: until released)"))  # fmt: skip
@gathered("token", make_token, token_file, option(
    "--no-token", is_flag=True,
    help="watch only: WorkerServers evict nobody, and nothing can be done by hand"))  # fmt: skip
@gathered("group_tokens", read_group_tokens, option(
    "--group-tokens", type=FILE, metavar="FILE", envvar="LIGHTKEEPER_GROUP_TOKENS",
    help="lines of `GROUP TOKEN`: secrets with which ranks of that replica group register, and "
    "nothing else can be done"))  # fmt: skip
@option("--ca-file", type=FILE, metavar="FILE", envvar="LIGHTKEEPER_CA_FILE",
        help="PEM file of the authorities to trust for https:// WorkerServers and Lighthouse "
        "(default: whom the system trusts)")  # fmt: skip
@option("--open-reads", is_flag=True, envvar="LIGHTKEEPER_OPEN_READS",
        help="serve pages of ranks (stacks, flight records, last words ...) without the token, "
        "even if bound to more than loopback")  # fmt: skip
@option("--closed-reads", is_flag=True, envvar="LIGHTKEEPER_CLOSED_READS",
        help="require the token for pages of ranks even on loopback (for machines that others use "
        "as well)")  # fmt: skip
@logs
@option("--journal", type=FILE, metavar="DIR", section="Journal",
        help="where every tick is recorded for `lightkeeper replay` "
        "(default: beside the store, monitor.db -> monitor.journal)")  # fmt: skip
@option("--no-journal", is_flag=True, section="Journal", help="record no ticks")
@_journal_options
@_series_options
@notify_options
@scheduler_options
def monitor(
    *, rules: Rulebook, store: StorePlace, journal: Path | None, no_journal: bool,
    sinks: Callable[[float], tuple[Sink, ...]], log_level: int | None, **options: Any,
) -> int:  # fmt: skip
    """Watch a job, and evict its sick replica groups.

    examples:
      look only, evict nothing:
        lightkeeper monitor --lighthouse http://head:29510 --observe
      keep at least two groups, at most two evictions an hour:
        lightkeeper monitor --lighthouse http://head:29510 --token-file token \\
            --min-replicas 2 --budget 2/hour
      serve the network (ranks register with LIGHTKEEPER_MONITOR=http://head:8470):
        lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token
      the same, where the ranks' WorkerServers speak TLS (LIGHTKEEPER_TLS_CERT and _KEY):
        lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token \\
            --ca-file ca.pem
      without a record of every tick (256 MB at most, for `lightkeeper replay`):
        lightkeeper monitor --lighthouse http://head:29510 --no-journal
      a second one that stands by (on the same host; docs/deploy.md):
        lightkeeper monitor --lighthouse http://head:29510 --token-file token --bind 127.0.0.1:8471
      the same on two hosts (the password in PGPASSFILE):
        lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token \\
            --store postgresql://lightkeeper@db/lightkeeper
      call a rank hung later:
        lightkeeper monitor --lighthouse http://head:29510 --set stall_floor_s=30
      keep quarantined hosts out of Slurm (or kubernetes, or webhook=URL; docs/deploy.md):
        lightkeeper monitor --lighthouse http://head:29510 --token-file token --scheduler slurm
      by a policy file (docs/configuration.md); `lightkeeper policy reload` reads it again:
        lightkeeper monitor --lighthouse http://head:29510 --policy policy.toml

    then: open http://127.0.0.1:8470/ or run `lightkeeper status`
    """
    config = rules.current.config
    return serve(
        Options(
            config=config,
            rules=rules,
            store=store,
            journal=None if no_journal else journal or beside(store.path, ".journal"),
            sinks=sinks(config.notify_expire_s),
            otlp=signals_for_otlp(os.environ),
            **options,
        ),
        log_level,
    )


# -- the process -----------------------------------------------------------------------------------

log = logging.getLogger("lightkeeper")

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_RELOADS: Final = frozenset({signal.SIGHUP})
"""Reads the policy again if there is a file; else it ends the monitor, as by default."""
_LAST_TICK_S: Final = 5.0


def serve(options: Options, log_level: int | None) -> int:
    """Run until SIGTERM or SIGINT."""
    if log_level is None:
        for name in ("lightkeeper", "lightkeeper.monitor.loop"):
            logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger("lightkeeper.monitor").setLevel(logging.WARNING)
    others = os.umask(0o077)  # its files are for its own user only
    policy = None if options.rules is None else options.rules.current.path
    signals = _SIGNALS if policy is None else _SIGNALS | _RELOADS
    with _queued(signals) as came:
        try:
            service = Service(options)
        except StartError as exc:
            os.umask(others)
            raise CommandError(str(exc)) from exc
        with service:
            _greet(options, service)
            stop = threading.Event()
            loop = threading.Thread(target=service.run, args=(stop,), name="keep", daemon=True)
            loop.start()
            ended = None
            while ended is None:
                number = _next(came)
                if number in _RELOADS:
                    service.reload()
                elif number is not None:
                    break
                ended = service.ended() if loop.is_alive() else "the loop"
            if ended is not None:
                log.critical("%s has ended: this monitor ends, and is to be started again", ended)
            log.info("stopping")
            stop.set()
            loop.join(_LAST_TICK_S)
    return DONE if ended is None else FAILED


@contextmanager
def _queued(signals: frozenset[signal.Signals]) -> Iterator[SimpleQueue[int]]:
    """Queue signals until they are read.

    By handlers, since a mask is not enough: numpy's threads are older than this call and block no
    signal, so the kernel would deliver it to them whenever this thread does not wait for it, and
    end the process. `SimpleQueue.put` is reentrant.
    """
    came: SimpleQueue[int] = SimpleQueue()
    before = {
        signum: signal.signal(signum, lambda number, _: came.put(number)) for signum in signals
    }
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _next(came: SimpleQueue[int]) -> int | None:
    try:
        return came.get(timeout=1.0)
    except Empty:
        return None


def _greet(options: Options, service: Service) -> None:
    log.info("monitor at %s (pid %d), store %s", service.url, os.getpid(), options.store)
    standing = service.standing
    if not standing.active:
        log.warning("%s", standing.sentence())
    if options.token is None:
        log.warning("%s", TOKENLESS)
    for line in for_ranks(options, service.url):
        log.info("%s", line)
    if options.config.observe:
        log.warning("observe mode: nothing will be evicted")
    if options.lighthouse is None:
        log.warning(
            "no Lighthouse is configured: this monitor watches only (--lighthouse URL); evicting "
            "the only group by hand ends the job"
        )
    if options.gate is not None and options.token is None:
        log.warning("--gate without a token: the gate will take no list (--token-file FILE)")
    if options.lighthouse is not None and (problem := reach(options.lighthouse)) is not None:
        log.warning("Lighthouse %s: %s; waiting for it", options.lighthouse, problem)


def for_ranks(options: Options, url: str) -> Iterator[str]:
    """How to start ranks so that this monitor sees them."""
    host, port = parse_bind(options.bind)
    by_default = port == home.DEFAULT_PORT and host in ("127.0.0.1", "0.0.0.0")  # noqa: S104 - compared
    words = "" if by_default else f" --monitor {for_people(url)}"
    own = home.own_token_file(os.environ)
    try:
        ours = own is not None and home.read_token_file(own) == options.token
    except (OSError, ValueError):
        ours = False
    named = "" if ours or options.token is None else " --token-file FILE"
    yield f"ranks on this host: lightkeeper run{words}{named} -- torchrun ... train.py"
    if is_loopback(host):
        yield f"ranks on other hosts: start this monitor with --bind 0.0.0.0:{port}"
    else:
        copy = f" (FILE: a copy of {own})" if ours else ""
        yield (
            f"ranks on other hosts: lightkeeper run --monitor {for_people(url)} --token-file FILE "
            f"-- torchrun ... train.py{copy}"
        )
