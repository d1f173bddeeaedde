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
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import log
from statistics import median
from typing import Any, Final, NamedTuple

from msgspec import convert

from lightkeeper.worker_server.command import OneLineParser
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.rank.identity import node_of

LIMIT_S: Final = 60.0
_STORE_PORT: Final = 29500

_ABOUT: Final = """\
Look at this host before a job starts on it: what the machine's own logs say, a matrix
multiplication on each GPU (or core), memory, room on disk and in /dev/shm, this host's and the
store's names, and the Lighthouse. If the launch has several hosts, they meet at a store of their
own (MASTER_ADDR, the port after MASTER_PORT), measure the links between them in pairs, and all
report the same: which host or link is at half or less. With two hosts, nobody can say which it is.
A host alone compares only its own GPUs or cores. The monitor is not informed; nothing stays behind.
"""
_EXAMPLES: Final = """\
examples, the second one the same on each of four hosts:
  lightkeeper check host
  lightkeeper check host --hosts 4 --store node1:29501
  MASTER_ADDR=node1 srun --ntasks-per-node 1 lightkeeper check host
  lightkeeper run --preflight refuse -- torchrun --nnodes 4 --rdzv-endpoint node1:29500 train.py

exit status: 0 nothing is wrong here, 1 this host stands out or a check failed, 2 wrong use.
See docs/deploy.md.
"""


class JobLaunch(NamedTuple):
    """The hosts of a launch, as its command and variables say."""

    hosts: int = 1
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
    return JobLaunch(
        int(hosts) if hosts.isdigit() and address else 1,
        address,
        (int(port) if port.isdigit() else _STORE_PORT) + 1,
    )


class HostLook(NamedTuple):
    """What the measuring child said."""

    host: str
    reports: list[HostFigures]
    notes: list[tuple[str, str, str]]
    """What was looked at; `fine`, `note`, `bad`, `missing` or `cannot be read`; and what of it."""

    @property
    def odd(self) -> list[Judged]:
        """What stands out on any host, and where either of two may be the odd one."""
        return [row for row in compare(self.reports) if row.verdict in (BAD, UNSURE)]

    @property
    def fit(self) -> bool:
        """Nothing is wrong with this host."""
        ours = any(row.host == self.host and row.verdict == BAD for row in self.odd)
        return not ours and all(state != "bad" for _, state, _ in self.notes)


def look(
    launch: JobLaunch, environ: Mapping[str, str], limit_s: float,
    program: Sequence[str] = ("-m", "lightkeeper.worker_server.preflight_probe"),
) -> HostLook:  # fmt: skip
    """Measure, for at most `limit_s` seconds and one more; what hangs is ended and named."""
    host, lighthouse = node_of(environ), environ.get("TORCHFT_LIGHTHOUSE", "")
    plan = launch._asdict() | {
        "host": host, "arrive_s": limit_s / 2, "limit_s": limit_s, "lighthouse": lighthouse,
    }  # fmt: skip
    quiet = {name: value for name, value in environ.items() if name != "LIGHTKEEPER_ATTACH"}
    with os.fdopen(os.memfd_create("preflight"), "r", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, *program, json.dumps(plan)], stdin=subprocess.DEVNULL,
            stdout=said, stderr=subprocess.DEVNULL,
            env={**quiet, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )  # fmt: skip
        trouble = ""
        try:
            if (status := child.wait(limit_s + 1)) != 0:
                trouble = f"the measuring ended: {status}"
        except subprocess.TimeoutExpired:
            trouble = f"did not end within {limit_s:g} s"
            child.kill()
            with suppress(subprocess.TimeoutExpired):  # inside the kernel: left behind
                child.wait(2.0)
        said.seek(0)
        lines = list(_objects(said))
    figures = tuple(Figure(*line["figure"]) for line in lines if "figure" in line)
    reports = [convert(row, HostFigures) for line in lines for row in line.get("reports", ())]
    notes = [tuple(line["note"]) for line in lines if "note" in line]
    if trouble:
        doing = [line["doing"] for line in lines if "doing" in line]
        notes.append(((doing or ["the start"])[-1], "bad", trouble))
    return HostLook(host, reports or [HostFigures(host, figures)], notes)


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):
            yield json.loads(line)


# -- which host stands out ----------------------------------------------------------------------

FINE, BAD, UNSURE, ALONE = "fine", "stands out", "cannot tell", "not compared"
MATMUL, MEMORY, LINK = "matrix multiplication", "memory copy", "link"
_FACTORS: Final[Mapping[str, float]] = {MATMUL: 2.0, MEMORY: 3.0, LINK: 4.0}
"""How many times slower than the others stands out. Those that a scheduler shifts by itself have
more; for time DLRover's node check has 2."""
_SPREADS: Final = 4.0
"""And so many of the others' own spreads (median absolute deviation of logarithms)."""
_LEAST: Final = 1e-9
"""In place of 0, which has no logarithm: a link that carried nothing."""


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
    """All figures: a host's are compared with other hosts', a device's with those of its host."""
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


def as_json(seen: HostLook) -> str:
    notes = [dict(zip(("check", "state", "said"), note, strict=True)) for note in seen.notes]
    return json.dumps({
        "schema": 1, "host": seen.host, "fit": seen.fit,
        "hosts": [each.host for each in seen.reports], "checks": notes,
        "figures": [row._asdict() for row in compare(seen.reports)],
        "stands_out": [row._asdict() | {"said": str(row)} for row in seen.odd],
    }, indent=2)  # fmt: skip


def as_text(seen: HostLook) -> str:
    """Figures of this host, then what stands out anywhere."""
    reports, odd = seen.reports, seen.odd
    lines = [f"{row.verdict}: {row}" for row in compare(reports) if row.host == seen.host]
    lines += [f"{check}: {state}: {said}" for check, state, said in seen.notes]
    lines += [f"{row.verdict}: {row}" for row in odd if row.host != seen.host]
    if not odd:
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
        say(f"preflight: {LIMIT_S:g} s at most")
        seen = look(launch_of(environ, command), environ, LIMIT_S)
    except Exception as exc:  # noqa: BLE001  training does not depend on us
        say(f"no preflight: {exc!r}")
        return True
    for line in as_text(seen).splitlines():
        say(line)
    return seen.fit


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
    seen = look(JobLaunch(args.hosts, address, int(port)), os.environ, args.limit)
    print(as_json(seen) if args.json else as_text(seen))  # noqa: T201
    return int(not seen.fit)


if __name__ == "__main__":
    sys.exit(main())
