"""Which host stands out before the first step: a comparison of figures, without clock or socket.

Every host judges the same reports and so says the same. A figure is bad only against others: an
absolute table would be wrong on the next machine. The factors are wide, for one look of a second
finds gross faults alone; a job of half a year is not to be refused for a busy neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log
from statistics import median
from typing import Any, Final, NamedTuple

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
    """Of a device, or of the whole host; more is better."""

    name: str
    unit: str
    value: float
    device: str = ""


class Report(NamedTuple):
    """What one host measured."""

    host: str
    figures: tuple[Figure, ...] = ()
    links: Mapping[str, float] = {}
    """The other host -> MB/s to it and back; 0: it could not be reached."""

    @classmethod
    def read(cls, row: Sequence[Any]) -> Report:
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


def judged(values: Mapping[str, float], factor: float) -> Iterator[tuple[str, float | None, str]]:
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


def compare(reports: Sequence[Report]) -> list[Judged]:
    """All figures of all hosts: of the host against other hosts, of a device against its host's."""
    rows, tables = list[Judged](), dict[tuple[str, str, str], dict[str, float]]()
    for report in reports:
        for name, unit, value, device in report.figures:
            host = report.host if device else ""
            tables.setdefault((name, unit, host), {})[device or report.host] = value
    for (name, unit, host), values in tables.items():
        for who, others, verdict in judged(values, _FACTORS[name]):
            if not host:
                rows.append(Judged(who, name, unit, values[who], others, verdict))
            elif verdict != ALONE:
                of = f"{name} of {who}"
                rows.append(Judged(host, of, unit, values[who], others, verdict, "its others"))
    return rows + list(_links(reports))


def _links(reports: Sequence[Report]) -> Iterator[Judged]:
    """A host by its best link, for a slow host slows its peers' links too; then single links."""
    best = {each.host: max(each.links.values()) for each in reports if each.links}
    slow = set()
    if len(best) > 2:  # both ends of a pair measured the same
        for host, others, verdict in judged(best, _FACTORS[LINK]):
            slow |= {host} if verdict == BAD else set()
            yield Judged(host, LINK, "MB/s", best[host], others, verdict)
    ends = {
        " - ".join(sorted((report.host, peer))): rate
        for report in reports for peer, rate in report.links.items()
        if not slow & {report.host, peer}
    }  # fmt: skip
    for pair, others, verdict in judged(ends, _FACTORS[LINK]):
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
