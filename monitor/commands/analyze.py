"""`lightkeeper analyze`: the culprit from flight records on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import click
from msgspec import Meta
from msgspec.json import Decoder

from lightkeeper.monitor.commands.command import (
    DONE,
    FAILED,
    FILE,
    CommandError,
    Within,
    as_json,
    command,
    option,
)
from lightkeeper.monitor.commands.offline import (
    CannotTellError,
    Judging,
    Progress,
    composed,
    deadline,
    judged,
    shown,
)
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import TooMuchError, bundle_in, load
from lightkeeper.monitor.records.job import Job
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.monitor.show.report import Report, print_analysis
from lightkeeper.monitor.show.wording import clean
from lightkeeper.worker_server.home import open_file

_MEMBERS_MAX_BYTES = 64 << 20
_MEMBERS = Decoder(dict[str, list[Annotated[int, Meta(ge=0)]]])


@command(cls=Judging)
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="PATH...")
@as_json
@option("--html", type=click.File("a", encoding="utf-8"), metavar="FILE",
        help="also write the report as one page")  # fmt: skip
@option("--details", is_flag=True, help="who waits for whom, also where no fault was found")
@option("--world-size", type=Within(1, 1e7, int), metavar="N",
        help="ranks of the job, where some left no dump (default: from the dumps)")  # fmt: skip
@option("--members", type=FILE, metavar="FILE",
        help='JSON, members of process groups that the dumps do not name: '
        '{"dp": [0, 1, 2, 3]}')  # fmt: skip
@deadline("16,384 ranks take some minutes")
def analyze(*, html: IO[str] | None, as_json: bool, deadline: float, **options: Any) -> int:
    """Who hangs a job, from its flight-record dumps.

    what to give it:
      Flight-record dumps of the ranks of one job: the folder into which NCCL's watchdog wrote
      them (TORCH_FR_DUMP_TEMP_FILE), pickles or JSON of torch's recorder on NCCL or gloo, answers
      of /v1/flight_recorder, a zip of any of these, or the evidence of an incident that the monitor
      saved. A file's name ends in its rank (nccl_trace_rank_7, 7.json) or says it
      (rank7_node1.pickle). All ranks if you have them: a gap in their numbers counts as a rank
      without a dump.

    examples:
      lightkeeper analyze /tmp/nccl_trace_rank_*           who hangs my job?
      lightkeeper analyze dumps/ --html report.html        the same as a page to mail
      lightkeeper analyze dumps/ --details                 who waits for whom, in any case
      lightkeeper analyze dumps/ --world-size 64           the ranks without a dump count as silent
      lightkeeper analyze dumps/ --format json | jq .culprits

    exit status:
      0  no fault found          3  cannot tell: a limit was reached
      1  a fault found           70 a fault of lightkeeper itself
      2  no usable input

    Dumps are read without running anything in them. docs/offline.md explains kinds and confidence.
    """
    status, written = judged(
        lambda tell: _judge(tell, as_json=as_json, html=html is not None, **options),
        deadline_s=deadline, as_json=as_json,
    )  # fmt: skip
    if html is not None and written is not None:
        try:
            html.truncate(0)  # what an earlier report left
            html.write(written)
            html.flush()
        except OSError as exc:
            raise CommandError(f"cannot write {shown(Path(html.name))}: {exc.strerror}") from exc
    return status


def _judge(
    progress: Progress, *, paths: Sequence[Path], details: bool, world_size: int | None,
    members: Path | None, as_json: bool, html: bool,
) -> tuple[int, str, str]:  # fmt: skip
    """The exit status, the report, and the page."""
    group_members = None if members is None else read_members(members)
    try:
        bundle = bundle_in(paths)
        job = _load(paths, world_size, group_members, progress, evidence=bundle is not None)
    except TooMuchError as exc:
        raise CannotTellError(f"there is {exc}") from exc
    report = Report(job, analyse(job), bundle)
    text = partial(print_analysis, report=report, details=details)
    said = composed(as_json=as_json, body=report.body, text=text)
    written = report.page() if html else ""
    return FAILED if report.analysis.findings or report.live else DONE, said, written


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
            raise CommandError(f"{shown(path)}: no such file or folder")
    try:
        job = load(paths, world_size=world_size, members=members, progress=progress)
    except FlightRecordError as exc:
        raise CommandError(f"no usable flight record: {clean(str(exc), 500)}") from exc
    if not job.ranks and not evidence:  # a bundle has the monitor's verdict even without records
        raise CommandError(_why_nothing(job, paths))
    return job


def _why_nothing(job: Job, paths: Sequence[Path]) -> str:
    if not job.problems:
        where = ", ".join(shown(path) for path in paths[:3])
        return f"no flight record in {where}: a dump's name tells its rank"
    first = job.problems[0]
    more = f" (and {len(job.problems) - 1} more)" if len(job.problems) > 1 else ""
    return f"no usable flight record: {clean(first.path, 300)}: {clean(first.reason, 300)}{more}"


def read_members(path: Path) -> dict[str, list[int]]:
    """Process groups and their global ranks from a JSON file.

    Raises:
        CommandError: it cannot be read, or has other contents.
    """
    try:
        with open_file(path) as file:
            groups = _MEMBERS.decode(file.read(_MEMBERS_MAX_BYTES))
    except OSError as exc:
        raise CommandError(f"cannot read {shown(path)}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{shown(path)}: {exc}, expected lists of ranks by name") from exc
    for name, ranks in groups.items():
        if len(set(ranks)) != len(ranks):
            raise CommandError(f"{shown(path)}: {clean(name, 80)!r} holds a rank twice")
    return groups
