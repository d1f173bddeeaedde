"""`lightkeeper analyze`: from flight records on disk to the culprit."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from monitor.commands.confined import confined
from monitor.commands.errors import DONE, FAILED, USAGE, CannotTellError, CommandError
from monitor.commands.offline import (
    add_deadline,
    add_format,
    check_writable,
    composed,
    judging,
    reading_bar,
    say,
    shown,
    write,
)
from monitor.records.analyse import analyse
from monitor.records.files import TooMuchError, bundle_in, load
from monitor.records.job import Job
from monitor.records.safe_pickle import FlightRecordError
from monitor.show.finding_words import group_label
from monitor.show.report import Online, lines, no_answer, online, page, print_report, report
from monitor.show.standing import concerned, named
from monitor.show.wording import clean, sentence

_DETAILED = 12
_MEMBERS_MAX_BYTES = 64 << 20

EXAMPLES = """\
what to give it:
  Flight-record dumps of the ranks of one job: the folder into which NCCL's watchdog wrote them
  (TORCH_FR_DUMP_TEMP_FILE), pickles or JSON of torch's recorder on NCCL or gloo, answers of
  /v1/flight_recorder, a zip of any of these, or the evidence of an incident that the monitor saved.
  A file's name ends in its rank (nccl_trace_rank_7, 7.json) or says it (rank7_node1.pickle). All
  ranks if you have them: a gap in their numbers counts as a rank without a dump.

examples:
  lightkeeper analyze /tmp/nccl_trace_rank_*              who hangs my job?
  lightkeeper analyze dumps/ --html report.html           the same as a page to mail
  lightkeeper analyze dumps/ --group dp                   what each member of a process group did
  lightkeeper analyze dumps/ --world-size 64              the ranks without a dump count as silent
  lightkeeper analyze dumps/ --format json | jq .culprits

exit status:
  0  no fault found          3  cannot tell: a limit was reached
  1  a fault found           70 a fault of lightkeeper itself
  2  no usable input

Dumps are read without running anything in them. docs/analyze.md explains kinds and confidence.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Paths and options of `analyze`."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="dumps: files, folders or zips"
    )
    add_format(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write one page with graph and timeline"
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME",
        help="detail of a process group, by its name or description; again for more",
    )
    parser.add_argument(
        "--details", action="store_true", help="detail of every group in which somebody waits"
    )
    parser.add_argument(
        "--world-size",
        type=_count,
        metavar="N",
        help="ranks of the job, where some may have left no dump (default: as the dumps tell)",
    )
    parser.add_argument(
        "--members",
        type=Path,
        metavar="FILE",
        help='members of process groups that the dumps do not tell, JSON: {"dp": [0, 1, 2, 3]}',
    )
    add_deadline(parser, "16,384 ranks take some minutes")


@judging
def run(args: argparse.Namespace) -> int:
    """Load, analyse, report; 1 if there is a fault."""
    if args.html is not None:
        check_writable(args.html)  # not only after a long load
    try:
        with _progress() as progress:
            status, told, html = confined(
                lambda tell: _judge(args, tell), deadline_s=args.deadline, progress=progress
            )
    except CannotTellError as exc:
        if args.format != "json":
            raise
        say(json.dumps(no_answer(exc.reason, exc.done, exc.total), indent=2) + "\n")
        return exc.status
    say(told)
    if args.html is not None:
        write(args.html, html)
    return status


def _judge(args: argparse.Namespace, progress: Callable[[int, int], None]) -> tuple[int, str, str]:
    """The exit status, the report, and the page."""
    members = None if args.members is None else read_members(args.members)
    try:
        bundle = bundle_in(args.paths)
        job = _load(args.paths, args.world_size, members, progress, evidence=bundle is not None)
    except TooMuchError as exc:
        raise CannotTellError(f"there is {exc}") from exc
    groups = _groups(job, args.group)
    analysis = analyse(job)
    told = online(job, analysis, bundle)
    if args.details:
        groups = tuple(dict.fromkeys((*groups, *concerned(analysis)[:_DETAILED])))

    def text(console: Console) -> None:
        if told is not None:
            _print_told(console, job, told)
        print_report(console, job, analysis, groups)

    as_json = args.format == "json"
    said = composed(as_json=as_json, body=lambda: report(job, analysis, told), text=text)
    html = "" if args.html is None else page(job, analysis, told)
    return FAILED if analysis.findings or told else DONE, said, html


def _load(
    paths: Sequence[Path],
    world_size: int | None,
    members: Mapping[str, Sequence[int]] | None,
    progress: Callable[[int, int], None],
    *,
    evidence: bool,
) -> Job:
    for path in paths:
        if not os.path.lexists(path):
            raise CommandError(f"{shown(path)}: no such file or folder", USAGE)
    try:
        job = load(paths, world_size=world_size, members=members, progress=progress)
    except FlightRecordError as exc:
        raise CommandError(f"no usable flight record: {clean(str(exc), 500)}", USAGE) from exc
    if not job.ranks and not evidence:  # a bundle says what the monitor saw also without records
        raise CommandError(_why_nothing(job, paths), USAGE)
    return job


def _why_nothing(job: Job, paths: Sequence[Path]) -> str:
    """Why no rank's record was read."""
    if not job.problems:
        where = ", ".join(shown(path) for path in paths[:3])
        return f"no flight record in {where}: a dump's name tells its rank"
    first = job.problems[0]
    more = f" (and {len(job.problems) - 1} more)" if len(job.problems) > 1 else ""
    return f"no usable flight record: {clean(first.path, 300)}: {clean(first.reason, 300)}{more}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    columns = (
        TextColumn("reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TimeElapsedColumn(),
    )
    with reading_bar(*columns) as update:
        yield update and (lambda done, total: update(completed=done, total=total))


def _groups(job: Job, names: Sequence[str]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for name in names:
        indices = named(job, name)
        if not indices:
            known = sorted({word for one in job.groups for word in (one.name, one.desc) if word})
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:6]
            hint = ", ".join(clean(word, 80) for word in near)
            told = f"no process group {clean(name, 80)!r} in these records"
            raise CommandError(f"{told}; there are {hint}" if hint else told, USAGE)
        found.update(dict.fromkeys(indices))
    if len(found) > _DETAILED:
        label = group_label(job.groups[next(iter(found))])
        raise CommandError(
            f"{len(found)} process groups are called that; name one, such as {label!r}", USAGE
        )
    return tuple(found)


def _print_told(out: Console, job: Job, one: Online) -> None:
    heading, facts = lines(job, one)
    out.print(Text(sentence(heading), "bold red" if one.sure else "bold magenta"))
    for what, seen in facts:
        out.print(Text(f"   {what + ': ' if what else ''}{seen}"))
    out.print(Text("\nby the flight records alone:", "dim"))


def _count(text: str) -> int:
    """A world size."""
    number = int(text)
    if not 1 <= number <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{number} is not 1 to 10,000,000")
    return number


def read_members(path: Path) -> dict[str, list[int]]:
    """Process groups and their global ranks from a JSON file.

    Raises:
        CommandError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            held: Any = json.loads(file.read(_MEMBERS_MAX_BYTES))
    except OSError as exc:
        raise CommandError(f"cannot read {shown(path)}: {exc.strerror}", USAGE) from exc
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{shown(path)} holds no JSON", USAGE) from exc
    if not isinstance(held, dict):
        raise CommandError(f"{shown(path)}: expected an object of lists of ranks", USAGE)
    for name, ranks in held.items():
        good = isinstance(ranks, list) and all(type(one) is int and one >= 0 for one in ranks)
        if not good or len(set(ranks)) != len(ranks):
            told = f"{shown(path)}: {clean(name, 80)!r} is no list of different ranks"
            raise CommandError(told, USAGE)
    return held
