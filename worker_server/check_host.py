"""`lightkeeper check host`, and `lightkeeper run --preflight`: is this host fit, before step one?

It measures in a child process, for torch is slow to import and a device may hang; the monitor hears
nothing of it, and nobody is accused. Every host judges the same reports and so says the same. A
figure is bad only against others: an absolute table would be wrong on the next machine. The factors
are wide, for one look of a second finds gross faults alone; a job of half a year is not to be
refused for a busy neighbour.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lightkeeper.worker_server.command import OneLineParser
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.rank.identity import node_of
from lightkeeper.worker_server.rank.settings import SettingError, monitors_in, monitors_of

LIMIT_S: Final = 60.0
_SAY_S: Final = 2.0
_STORE_PORT: Final = 29500

_ABOUT: Final = """\
Look at this host before a job starts on it: what the machine's own logs say, a matrix
multiplication on each GPU (or core), memory, disk, room in /dev/shm, the store's name, the
Lighthouse and the monitor. Where the launch has several hosts they meet at a store
of their own (MASTER_ADDR, the port after MASTER_PORT), measure the links between them in pairs, and
all say the same: which host or link is at half or less. Of two hosts nobody can say which is it.
Alone, only its GPUs or cores are compared, with each other.
The monitor hears nothing of it, and nothing stays behind.
"""
_EXAMPLES: Final = """\
examples:
  this host alone:
    lightkeeper check host
  four hosts against each other; the same on each of them:
    lightkeeper check host --hosts 4 --store node1:29501
  in Slurm, where the number of hosts is known:
    MASTER_ADDR=node1 srun --ntasks-per-node 1 lightkeeper check host
  before every start; `refuse` ends with status 75 where this host stands out:
    lightkeeper run --preflight refuse -- torchrun --nnodes 4 --rdzv-endpoint node1:29500 train.py

exit status: 0 nothing is wrong here, 1 this host stands out or a check failed, 2 wrong use.
See docs/deploy.md.
"""


class JobLaunch(NamedTuple):
    """The hosts of a launch, as its command and variables say."""

    hosts: int = 1
    rank: int | None = None
    """This host's; None: not known before the rendezvous."""
    store_host: str = ""
    store_port: int = 0


def launch_of(environ: Mapping[str, str], command: Sequence[str] = ()) -> JobLaunch:
    """From torchrun's options, its variables, Slurm's, and MASTER_ADDR."""
    options = dict[str, str]()
    for word, after in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            options.setdefault(name[2:].replace("-", "_"), value if equals else after)

    def first(option: str, *names: str) -> str:
        words = (options.get(option), environ.get(f"PET_{option.upper()}"))
        return next(filter(None, (*words, *map(environ.get, names))), "")

    endpoint = first("rdzv_endpoint") or first("master_addr", "MASTER_ADDR")
    address, _, port = endpoint.partition(":")
    port = port or first("master_port", "MASTER_PORT")
    hosts = first("nnodes", "SLURM_NNODES").partition(":")[2] or first("nnodes", "SLURM_NNODES")
    rank = first("node_rank", "SLURM_NODEID")
    return JobLaunch(
        int(hosts) if hosts.isdigit() and address else 1,
        int(rank) if rank.isdigit() else None,
        address,
        (int(port) if port.isdigit() else _STORE_PORT) + 1,
    )


def _reach(environ: Mapping[str, str]) -> list[tuple[str, str, int]]:
    urls = [("Lighthouse", environ.get("TORCHFT_LIGHTHOUSE", ""))]
    with suppress(SettingError):
        urls += [("monitor", url) for url in monitors_of(monitors_in(environ)) or ()]
    parts = [(check, urlsplit(url)) for check, url in urls if url]
    return [
        (check, part.hostname or "", part.port or (443 if part.scheme == "https" else 80))
        for check, part in parts
    ]


@dataclass(slots=True)
class HostLook:
    """What the measuring child said."""

    report: HostFigures
    reports: list[HostFigures] = field(default_factory=list)
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    """What was looked at; `fine`, `note`, `bad`, `missing` or `cannot be read`; and what of it."""
    doing: str = "the start"

    def hear(self, line: Mapping[str, Any]) -> None:
        self.doing = line.get("doing", self.doing)
        if "note" in line:
            self.notes.append(tuple(line["note"]))
        if "figure" in line:
            figures = (*self.report.figures, Figure(*line["figure"]))
            self.report = self.report._replace(figures=figures)
        if "reports" in line:
            self.reports = [HostFigures.read(row) for row in line["reports"]]


def look(
    launch: JobLaunch, environ: Mapping[str, str], limit_s: float, say: Callable[[str], object],
    program: Sequence[str] = ("-m", "lightkeeper.worker_server.preflight_probe"),
) -> HostLook:  # fmt: skip
    """Measure, for at most `limit_s` seconds and one more; what hangs is ended and named."""
    host = node_of(environ)
    plan = launch._asdict() | {
        "host": host, "arrive_s": limit_s / 2, "limit_s": limit_s, "reach": _reach(environ),
    }  # fmt: skip
    quiet = {name: value for name, value in environ.items() if name != "LIGHTKEEPER_ATTACH"}
    child = subprocess.Popen(
        [sys.executable, *program, json.dumps(plan)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**quiet, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = queue.SimpleQueue[str]()
    threading.Thread(target=_pass_on, args=(child, lines), daemon=True).start()
    seen = HostLook(HostFigures(host))
    end_s = time.monotonic() + limit_s + 1
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=min(left_s, _SAY_S))
        except queue.Empty:
            say(f"{seen.doing} ...")
            continue
        if not line:
            break
        with suppress(ValueError):
            seen.hear(json.loads(line))
    else:
        seen.notes.append((seen.doing, "bad", f"did not end within {limit_s:g} s"))
    child.kill()
    with suppress(subprocess.TimeoutExpired):  # inside the kernel: left behind
        if child.wait(2.0) not in (0, -9):
            seen.notes.append((seen.doing, "bad", f"the measuring ended: {child.returncode}"))
    seen.reports = seen.reports or [seen.report]
    return seen


def _pass_on(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    if child.stdout is not None:
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
    lines.put("")


# -- which host stands out ----------------------------------------------------------------------

FINE, BAD, UNSURE, ALONE = "fine", "stands out", "cannot tell", "not compared"
MATMUL, MEMORY, DISK, LINK = "matrix multiplication", "memory copy", "disk", "link"
_FACTORS: Final[Mapping[str, float]] = {MATMUL: 2.0, MEMORY: 3.0, DISK: 8.0, LINK: 4.0}
"""How many times slower than the others stands out. Those that a scheduler or a write-back cache
shifts by themselves have more; for time DLRover's node check has 2."""
_SPREADS: Final = 4.0
"""And so many of the others' own spreads (median absolute deviation of logarithms)."""
_LEAST: Final = 1e-9
"""In place of 0, of which there is no logarithm: a link that carried nothing."""


class Figure(NamedTuple):
    """What a device or the whole host achieves; more is better."""

    name: str
    unit: str
    value: float
    device: str = ""


class HostFigures(NamedTuple):
    """What one host measured."""

    host: str
    figures: tuple[Figure, ...] = ()
    links: Mapping[str, float] = {}
    """The other host -> MB/s to it and back; 0: it could not be reached."""

    @classmethod
    def read(cls, row: Sequence[Any]) -> HostFigures:
        """From JSON."""
        host, figures, links = row
        return cls(host, tuple(Figure(*each) for each in figures), links)


class Judged(NamedTuple):
    """One figure of one host."""

    host: str
    figure: str
    unit: str
    value: float
    others: float | None
    """Median of the others; None: there are none."""
    verdict: str
    against: str = "the other hosts"

    def __str__(self) -> str:
        said = f"{self.host}: {self.figure} {self.value:.3g} {self.unit}"
        return said if self.others is None else f"{said}, {self.against}: {self.others:.3g}"


def stands_out(
    values: Mapping[str, float], factor: float
) -> Iterator[tuple[str, float | None, str]]:
    """Each name, the median of the others, and whether it stands out from them."""
    logs = {name: log(max(value, _LEAST)) for name, value in values.items()}
    for name in values:
        others = [other for who, other in logs.items() if who != name]
        if not others:
            yield name, None, ALONE
            continue
        middle = median(others)
        spread = median(abs(other - middle) for other in others)
        behind = middle - logs[name]
        verdict = FINE
        if len(others) == 1 and abs(behind) > log(factor):
            verdict = UNSURE  # of two that differ either may be the odd one
        elif len(others) > 1 and behind > max(log(factor), _SPREADS * spread):
            verdict = BAD
        yield name, median(values[who] for who in values if who != name), verdict


def compare(reports: Sequence[HostFigures]) -> list[Judged]:
    """All figures of all hosts: of the host against other hosts, of a device against its host's."""
    rows, tables = list[Judged](), dict[tuple[str, str, str], dict[str, float]]()
    for report in reports:
        for name, unit, value, device in report.figures:
            host = report.host if device else ""
            tables.setdefault((name, unit, host), {})[device or report.host] = value
    for (name, unit, host), values in tables.items():
        for who, others, verdict in stands_out(values, _FACTORS[name]):
            if not host:
                rows.append(Judged(who, name, unit, values[who], others, verdict))
            elif verdict != ALONE:
                of = f"{name} of {who}"
                rows.append(Judged(host, of, unit, values[who], others, verdict, "its others"))
    return rows + list(_links(reports))


def _links(reports: Sequence[HostFigures]) -> Iterator[Judged]:
    """A host by its best link, for a slow host slows its peers' links too; then single links."""
    best = {each.host: max(each.links.values()) for each in reports if each.links}
    slow = set()
    if len(best) > 2:  # both ends of a pair measured the same
        for host, others, verdict in stands_out(best, _FACTORS[LINK]):
            slow |= {host} if verdict == BAD else set()
            yield Judged(host, LINK, "MB/s", best[host], others, verdict)
    ends = {
        " - ".join(sorted((report.host, peer))): rate
        for report in reports for peer, rate in report.links.items()
        if not slow & {report.host, peer}
    }  # fmt: skip
    for pair, others, verdict in stands_out(ends, _FACTORS[LINK]):
        if verdict == BAD or not ends[pair]:
            yield Judged(pair, LINK, "MB/s", ends[pair], others, BAD, "other links")


def rounds(count: int, most: int) -> list[dict[int, int]]:
    """A tournament of `count` players: who meets whom in each round, disjoint pairs."""
    size = count + count % 2
    ring, made = list(range(1, size)), []
    for _ in range(min(size - 1, most)):
        seats = [0, *ring]
        pairs = zip(seats[: size // 2], reversed(seats[size // 2 :]), strict=True)
        met = {left: right for left, right in pairs if max(left, right) < count}
        made.append(met | {right: left for left, right in met.items()})
        ring = ring[1:] + ring[:1]
    return made


# -- what it comes to ----------------------------------------------------------------------------


class HostAnswer(NamedTuple):
    """What is said, and whether this host is fit."""

    look: HostLook
    rows: list[Judged]
    odd: list[Judged]
    """What stands out on any host, and where either of two may be the odd one."""
    fit: bool


def judge_host(
    launch: JobLaunch, environ: Mapping[str, str], limit_s: float, say: Callable[[str], object]
) -> HostAnswer:
    """Measure and judge."""
    seen = look(launch, environ, limit_s, say)
    rows = compare(seen.reports)
    odd = [row for row in rows if row.verdict in (BAD, UNSURE)]
    ours = any(row.host == seen.report.host and row.verdict == BAD for row in odd)
    bad = any(state == "bad" for _, state, _ in seen.notes)
    return HostAnswer(seen, rows, odd, not ours and not bad)


def as_json(answer: HostAnswer) -> str:
    rows = [row._asdict() for row in answer.rows]
    notes = [dict(zip(("check", "state", "said"), note, strict=True)) for note in answer.look.notes]
    return json.dumps({
        "schema": 1, "host": answer.look.report.host, "fit": answer.fit,
        "hosts": [each.host for each in answer.look.reports], "checks": notes, "figures": rows,
        "stands_out": [row._asdict() | {"said": str(row)} for row in answer.odd],
    }, indent=2)  # fmt: skip


def as_text(answer: HostAnswer) -> str:
    """A table of this host's figures, then what stands out anywhere."""
    host, reports = answer.look.report.host, answer.look.reports
    lines = [f"{'figure':34} {'this host':>18} {'the others':>10}  verdict"]
    for row in answer.rows:
        if row.host == host:
            others = "" if row.others is None else f"{row.others:.3g}"
            here = f"{row.value:.3g} {row.unit}"
            lines.append(f"{row.figure:34} {here:>18} {others:>10}  {row.verdict}")
    lines += [f"{check}: {state}: {said}" for check, state, said in answer.look.notes]
    lines += [f"{row.verdict}: {row}" for row in answer.odd]
    if len(reports) == 2 and any(row.verdict == UNSURE for row in answer.odd):
        lines.append("with two hosts nobody can tell which is the odd one: try with a third")
    if not answer.odd:
        lines.append(f"nothing stands out, of {len(reports)} host{'s' * (len(reports) > 1)}")
    return "\n".join(map(escaped, lines))


def before_start(
    command: Sequence[str], environ: Mapping[str, str], say: Callable[[str], object]
) -> bool:
    """`lightkeeper run --preflight`: whether this host is fit. Never raises."""
    local = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or "0"
    if local != "0":  # the first of this host looks
        return True
    try:
        answer = judge_host(launch_of(environ, command), environ, LIMIT_S, say)
    except Exception as exc:  # noqa: BLE001  training does not depend on us
        say(f"no preflight: {exc!r}")
        return True
    for line in as_text(answer).splitlines():
        say(line)
    return answer.fit


def main(words: Sequence[str] | None = None) -> int:
    """Exit status 0: fit; 1: not; 2: usage error."""
    said = launch_of(os.environ)
    parser = OneLineParser(
        prog="lightkeeper check host", description=_ABOUT, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    about = "how many meet (default: as the launch says; here: %(default)s)"
    add("--hosts", type=int, metavar="N", default=said.hosts, help=about)
    about = "number of this host, to name who is missing (default: PET_NODE_RANK, SLURM_NODEID)"
    add("--rank", type=int, metavar="N", default=said.rank, help=about)
    about = "a free port of one of them (default: MASTER_ADDR and the port after MASTER_PORT)"
    add("--store", metavar="HOST:PORT", help=about)
    about = "seconds for all of it; half of them for the others to come (60)"
    add("--limit", type=float, metavar="S", default=LIMIT_S, help=about)
    add("--json", action="store_true", help="as JSON")
    args = parser.parse_args(words)
    address, _, port = (args.store or f"{said.store_host}:{said.store_port}").rpartition(":")
    if not port.isdigit() or (args.hosts > 1 and not address):
        parser.error("--store HOST:PORT or MASTER_ADDR is needed where several hosts meet")
    if not 5 <= args.limit <= 3600 or args.hosts < 1:
        parser.error("expected --limit of 5 to 3600 seconds, --hosts of at least 1")
    launch = JobLaunch(args.hosts, args.rank, address, int(port))
    answer = judge_host(launch, os.environ, args.limit, lambda text: sys.stderr.write(f"{text}\n"))
    print(as_json(answer) if args.json else as_text(answer))  # noqa: T201
    return int(not answer.fit)


if __name__ == "__main__":
    sys.exit(main())
