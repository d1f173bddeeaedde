"""The report as one page that loads nothing, runs nothing, and can be mailed or printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from monitor.analysis.finding import Analysis, Confidence, Finding, Wait
from monitor.flight_recorder.job import Job
from monitor.reports.markup import element, escaped, words
from monitor.reports.online import Online, lines
from monitor.reports.progress import concerned, members, offers, site, stands
from monitor.reports.standing import crowds
from monitor.reports.text import (
    awaited,
    idle,
    moment,
    problem_lines,
    shown_sequences,
    stuck_in,
    wait_columns,
)
from monitor.reports.wording import (
    MEANINGS,
    ended,
    group_label,
    headline,
    rank_list,
    rank_word,
    read_line,
    sentence,
    title,
    where,
    with_hosts,
)

_CSS = Path(__file__).with_name("report.css")
_GROUPS = 12
_ROWS = 60
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Should an escape ever be forgotten, the browser still runs and fetches nothing."""


def page(job: Job, analysis: Analysis, told: Online | None = None) -> str:
    """The whole document; `told` is what the monitor had said, of evidence bundles."""
    answer = headline(job, analysis.findings, analysis.culprits)
    tone = "bad" if analysis.culprits else "doubt" if analysis.findings or told else "good"
    body = (
        element(
            "header",
            words("h1", answer, class_=tone),
            words("p", read_line(job), class_="meta"),
        ),
        element("main", "" if told is None else _told(job, told), *_sections(job, analysis)),
        words("footer", "Written by lightkeeper analyze. Times are UTC, of each rank's own clock."),
    )
    head = element(
        "head",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        words("title", f"lightkeeper: {answer}"),
        element("style", _CSS.read_text(encoding="utf-8")),
    )
    return "<!doctype html>\n" + element("html", head, element("body", *body), lang="en") + "\n"


def _sections(job: Job, analysis: Analysis) -> Iterator[str]:
    for number, finding in enumerate(analysis.findings, start=1):
        yield _verdict(job, number, finding)
    if analysis.waits:
        about = "" if analysis.findings else "Nobody holds the others up: they were on their way."
        yield _section("Where everybody stands", about, _waits(job, analysis))
    groups = [_group(job, analysis, one, first=i == 0) for i, one in enumerate(_shown(analysis))]
    if groups:
        yield _section("The process groups concerned", _left_out(analysis), *groups)
    limits = [*problem_lines(job), *analysis.notes]
    if limits:
        yield _section("What limits this", "", _items(limits))


def _told(job: Job, one: Online) -> str:
    """The monitor's verdict, as a section of its own above the records'."""
    heading, facts = lines(job, one)
    shown = [words("p" if not what else "li", f"{what}: {seen}" if what else seen)
             for what, seen in facts]  # fmt: skip
    return element("section", words("h2", sentence(heading)), shown[0], element("ul", *shown[1:]))


def _section(title: str, about: str, *inside: str) -> str:
    told = words("p", about, class_="meta") if about else ""
    return element("section", words("h2", title), told, *inside)


def _verdict(job: Job, number: int, finding: Finding) -> str:
    unsure = finding.confidence is Confidence.UNSURE
    facts: list[tuple[str, str]] = [("shows at", where(job, finding))]
    if finding.victims:
        facts.append(("victims", rank_list(job, finding.victims)))
    facts.append(("hosts", with_hosts(job, finding.culprits)))
    facts.append(("process", ended(job, finding.culprits)))
    facts += finding.evidence.items()
    facts.append(("confidence", f"{finding.confidence}: {MEANINGS[finding.confidence]}"))
    shown = [fact for fact in facts if fact[1] and fact[1] != "-"]
    who, what = title(job, finding)
    return element(
        "article",
        element(
            "h2",
            words("span", f"{number}."),
            words("b", f"{who}:"),
            words("span", what),
            words("span", finding.kind, class_="chip"),
            words("span", finding.confidence, class_="chip"),
        ),
        words("p", sentence(finding.reason), class_="reason"),
        element("dl", *(words("dt", name) + words("dd", seen) for name, seen in shown)),
        class_="verdict unsure" if unsure else "verdict",
    )


def _waits(job: Job, analysis: Analysis) -> str:
    every = crowds(job, analysis, _ROWS)
    rows: list[tuple[str, Sequence[str]]] = []
    for one in every[:_ROWS]:
        waits: tuple[Wait | None, ...] = one.waits or (None,)
        for wait in waits:
            cells = [rank_list(job, one.ranks), str(one.role)]
            if wait is None:
                cells += [idle(one), "-", "-", "-"]
            else:
                cells += [stuck_in(job, one, wait), moment(wait.since_ns), awaited(job, one)]
                cells += [site(job, wait.row) or "-"]
            rows.append((str(one.role), cells))
    rest = sum(len(one.ranks) for one in every[_ROWS:])
    more = words("p", f"and {rest:,} more ranks", class_="meta") if rest else ""
    return _table(wait_columns(analysis), rows) + more


def _shown(analysis: Analysis) -> tuple[int, ...]:
    return concerned(analysis)[:_GROUPS]


def _left_out(analysis: Analysis) -> str:
    rest = len(concerned(analysis)) - _GROUPS
    return f"{rest} more groups: lightkeeper analyze --group NAME" if rest > 0 else ""


def _group(job: Job, analysis: Analysis, group: int, *, first: bool) -> str:
    one = job.groups[group]
    summary = f"{group_label(one)}: {rank_word(job, members(job, group), 12)}"
    told = " (as far as its entries tell)" if one.inferred or not one.members else ""
    head = ("ranks", "are", "enqueued", "completed", "first unfinished", "unfinished")
    rows = [
        (
            str(row.role),
            (
                rank_list(job, row.ranks),
                str(row.role),
                *(
                    "-" if cell is None else str(cell)
                    for cell in (row.enqueued, row.completed, row.first_unfinished, row.unfinished)
                ),
            ),
        )
        for row in stands(job, analysis, group)[:_ROWS]
    ]
    return element(
        "details",
        words("summary", summary + told),
        _table(head, rows),
        *(_called(job, group, *at) for at in shown_sequences(job, analysis, group)),
        open="" if first else None,
    )


def _called(job: Job, group: int, sequence: int, p2p: bool) -> str:
    rows = [
        ("", (rank_list(job, one.ranks), one.what, one.state, one.site or "-"))
        for one in offers(job, group, sequence, p2p=p2p)[:_ROWS]
    ]
    kind = "Point-to-point operation" if p2p else "Collective"
    head = ("ranks", "gave", "state", "called at")
    return words("h3", f"{kind} {sequence}") + _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Rows with the class each has."""
    top = element("thead", element("tr", *(words("th", cell) for cell in head)))
    body = (
        element("tr", *(words("td", cell) for cell in cells), class_=tone or None)
        for tone, cells in rows
    )
    return element("div", element("table", top, element("tbody", *body)), class_="wide")


def _items(lines: Sequence[str], at_most: int = 60) -> str:
    shown = [words("li", line) for line in lines[:at_most]]
    if len(lines) > at_most:
        shown.append(words("li", f"and {len(lines) - at_most} more"))
    return element("ul", *shown)
