"""The report for a terminal: the verdict first, then who waits for whom, then detail on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from monitor.analysis.finding import Analysis, Finding, Wait
from monitor.flight_recorder.job import Job
from monitor.flight_recorder.ops import POINT_TO_POINT
from monitor.reports.progress import members, offers, site, stands
from monitor.reports.standing import Crowd, Role, crowds
from monitor.reports.verdict import verdict
from monitor.reports.wording import (
    clean,
    counted,
    ended,
    group_label,
    headline,
    rank_list,
    rank_word,
    read_line,
    title,
    where,
    with_hosts,
)

_STYLES = {
    Role.CULPRIT: "bold red",
    Role.SUSPECT: "magenta",
    Role.SILENT: "magenta",
    Role.VICTIM: "yellow",
    Role.WAITING: "yellow",
    Role.FREE: "",
}
_ROWS = 40
_LINES = 12


def print_report(out: Console, job: Job, analysis: Analysis, groups: Sequence[int] = ()) -> None:
    """Write the report; detail for `groups`, indices into `Job.groups`."""
    for part in _parts(job, analysis, groups):
        out.print(part)


def _parts(job: Job, analysis: Analysis, groups: Sequence[int]) -> Iterator[RenderableType]:
    style = "bold red" if analysis.findings else "bold green"
    yield Text(headline(job, analysis.findings, analysis.culprits), style)
    yield Text(read_line(job), "dim")
    for number, finding in enumerate(analysis.findings, start=1):
        yield Text()
        yield from _finding(job, number, finding)
    if analysis.waits and (analysis.findings or groups):  # a healthy job waits at any moment
        yield Text()
        yield _waits(job, analysis)
    for group in groups:
        yield Text()
        yield from _group(job, analysis, group)
    yield from _limits(job, analysis)


def _finding(job: Job, number: int, finding: Finding) -> Iterator[RenderableType]:
    who, what = title(job, finding)
    facts = [
        ("shows at", where(job, finding)),
        ("victims", rank_list(job, finding.victims) if finding.victims else ""),
        ("hosts", with_hosts(job, finding.culprits)),
        ("process", ended(job, finding.culprits)),
        *((clean(name, 80), clean(seen)) for name, seen in finding.evidence.items()),
    ]
    return verdict(
        number, who, what,
        classes=(finding.kind,), confidence=finding.confidence, reason=finding.reason,
        facts=facts, width=44,
    )  # fmt: skip


def _waits(job: Job, analysis: Analysis) -> Table:
    every = [one for one in crowds(job, analysis, _ROWS) if one.role is not Role.FREE]
    made = _table("who waits for whom", *wait_columns(analysis))
    for one in every[:_ROWS]:
        waits: tuple[Wait | None, ...] = one.waits or (None,)
        for wait in waits:
            made.add_row(
                Text(rank_list(job, one.ranks), _STYLES[one.role]),
                Text(str(one.role), _STYLES[one.role]),
                Text(idle(one) if wait is None else stuck_in(job, one, wait)),
                Text("-" if wait is None else moment(wait.since_ns)),
                Text("-" if wait is None else awaited(job, one)),
                Text("-" if wait is None else site(job, wait.row) or "-"),
            )
    if len(every) > _ROWS:
        rest = sum(len(one.ranks) for one in every[_ROWS:])
        made.caption = f"and {counted(rest, 'rank')} more; --format json has them all"
    return made


def wait_columns(analysis: Analysis) -> tuple[str, ...]:
    """Heads of the table; nobody is called stuck where nothing is wrong."""
    within = "stuck in" if analysis.findings else "in"
    return ("ranks", "are", within, "since", "wait for", "called at")


def stuck_in(job: Job, crowd: Crowd, wait: Wait) -> str:
    """The collective in which a crowd stands: of one group exactly, of several by their like."""
    op = clean(wait.op, 80)
    group = job.groups[wait.group]
    if crowd.groups == 1:
        return f"{op} {wait.sequence} of {group_label(group)}"
    return f"{op} of {clean(group.desc or group.name, 80)} and its like ({crowd.groups} groups)"


def idle(crowd: Crowd) -> str:
    """What a crowd that waits in nothing has instead."""
    if crowd.role is Role.SILENT or crowd.unfinished is None:
        return "no record"
    return f"{crowd.unfinished} unfinished" if crowd.unfinished else "nothing unfinished"


def awaited(job: Job, crowd: Crowd) -> str:
    """For whom a crowd waits."""
    others = tuple(rank for rank in crowd.waits_for if rank not in crowd.ranks)
    if crowd.waits_for and not others:
        return "each other"
    return rank_list(job, others or crowd.waits_for) if crowd.waits_for else "nobody: all are there"


def moment(at_ns: int) -> str:
    """A time of day, UTC, of that rank's own clock."""
    if at_ns < 0:
        return "-"
    seconds, rest = divmod(at_ns, 10**9)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return "-"
    return f"{at:%H:%M:%S}.{rest // 10**6:03d}"


def _group(job: Job, analysis: Analysis, group: int) -> Iterator[RenderableType]:
    one = job.groups[group]
    ranks = members(job, group)
    told = ", as far as its entries tell" if one.inferred or not one.members else ""
    label = group_label(one).removeprefix("group ")
    yield Text(f"group {label}: {rank_word(job, ranks)}{told}", "bold")
    table = _table("", "ranks", "are", "enqueued", "completed", "first unfinished", "unfinished")
    for row in stands(job, analysis, group)[:_ROWS]:
        cells = (row.enqueued, row.completed, row.first_unfinished, row.unfinished)
        table.add_row(
            Text(rank_list(job, row.ranks), _STYLES[row.role]),
            Text(str(row.role), _STYLES[row.role]),
            *(Text("-" if cell is None else str(cell)) for cell in cells),
        )
    yield table
    for sequence, p2p in shown_sequences(job, analysis, group):
        called = _table(f"at {sequence}", "ranks", "gave", "state", "called at")
        for offer in offers(job, group, sequence, p2p=p2p)[:_ROWS]:
            words = (rank_list(job, offer.ranks), offer.what, offer.state, offer.site or "-")
            called.add_row(*(Text(word) for word in words))
        yield called


def shown_sequences(job: Job, analysis: Analysis, group: int) -> tuple[tuple[int, bool], ...]:
    """The collectives of a group that matter, and whether they are point-to-point; a few."""
    found: dict[tuple[int, bool], None] = {}
    for wait in analysis.waits:
        if wait.group == group:
            found[wait.sequence, bool(job.columns["p2p"][wait.row])] = None
    for one in analysis.findings:
        if one.group == group and one.sequence is not None:
            found[one.sequence, one.op in POINT_TO_POINT] = None
    return tuple(sorted(found))[:6]


def _limits(job: Job, analysis: Analysis) -> Iterator[RenderableType]:
    lines = [*problem_lines(job), *(clean(note) for note in analysis.notes)]
    if lines:
        yield Text()
        yield Text("what limits this", "bold")
    for line in lines[:_LINES]:
        yield Padding(Text(f"- {line}"), (0, 0, 0, 2))
    if len(lines) > _LINES:
        rest = f"- and {len(lines) - _LINES} more; --format json has them"
        yield Padding(Text(rest), (0, 0, 0, 2))


def problem_lines(job: Job) -> Iterator[str]:
    """What could not be read, a line each."""
    for one in job.problems:
        silent = () if one.rank is None else (one.rank,)
        missing = f" ({rank_word(job, silent)} has no record)" if silent else ""
        yield f"{clean(one.path, 300)}: {clean(one.reason, 300)}{missing}"


def _table(title: str, *columns: str) -> Table:
    made = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
