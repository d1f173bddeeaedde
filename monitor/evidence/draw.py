"""A process of its own: one bundle in, what its incident's page shows of it out, as one file.

    python -m monitor.evidence.draw BUNDLE.zip OUT STAMP

Whoever starts it says how much memory and CPU it may take. Flight records go through the readers
of `lightkeeper analyze` and through no other. Exit 0: OUT is there; 3: the last line of stderr
says why not, for a person.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from monitor.analysis.analyse import analyse
from monitor.analysis.finding import Analysis
from monitor.dumps.bundle import bundle_in
from monitor.dumps.load import load
from monitor.dumps.manifest import Manifest, Moment, read_manifest
from monitor.evidence.shelf import open_new
from monitor.flight_recorder import FlightRecordError
from monitor.flight_recorder.job import Job
from monitor.reports.graph import graph
from monitor.reports.incident_stacks import Taken, by_moment
from monitor.reports.markup import element, words
from monitor.reports.online import lines, online
from monitor.reports.text import moment as time_of_day
from monitor.reports.text import problem_lines
from monitor.reports.timeline import timeline
from monitor.reports.wording import clean, headline, read_line, sentence

SCHEMA: Final = 1
OK, REFUSED = 0, 3
_UNPACKED_MAX: Final = 256 << 20
"""Bytes of all parts: a bundle has 64 MiB at most, unless somebody allowed more."""
_STACKS_MAX: Final = 2 << 20
_PART_MAX: Final = 1 << 20
"""Characters of one drawing: the page is to open on a phone."""
_LIMITS: Final = 20
_MOMENTS: Final = {
    "firing": "When it began to fire",
    "eviction": "Right before the eviction",
}


class Refused(Exception):  # noqa: N818 - an answer, not an accident
    """Nothing can be drawn; the message is one line for a person."""


def main(arguments: list[str]) -> int:
    """Draw; say why not."""
    bundle, out, stamp = arguments
    try:
        made = draw(Path(bundle))
        _keep(Path(out), {"schema": SCHEMA, "stamp": stamp, "parts": made})
    except Refused as exc:
        return _say(str(exc))
    except MemoryError:
        return _say("to read it takes more memory than it may have: lightkeeper analyze reads it")
    except OSError as exc:
        return _say(f"it cannot be read, or the picture not kept: {exc.strerror or exc}")
    return OK


def draw(bundle: Path) -> dict[str, str]:
    """The parts, as markup.

    Raises:
        Refused: there is nothing in it that can be read.
    """
    manifest = read_manifest(str(bundle))
    if manifest is None:
        raise Refused("the bundle is damaged: its manifest cannot be read")
    _check_size(bundle)
    parts = _of_records(bundle)
    culprits = [str(one) for one in manifest.incident.get("culprits", ())][:1000]
    parts["stacks"] = _fitting(by_moment(_taken(bundle, manifest), culprits), "the stacks")
    return parts


def _check_size(bundle: Path) -> None:
    try:
        with zipfile.ZipFile(bundle) as opened:
            nbytes = sum(info.file_size for info in opened.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as exc:
        raise Refused(f"the bundle is damaged: {clean(str(exc), 200)}") from exc
    if nbytes > _UNPACKED_MAX:
        raise Refused(
            f"the bundle unpacks to {nbytes >> 20:,} MiB, at most {_UNPACKED_MAX >> 20} are drawn: "
            "lightkeeper analyze reads it"
        )


def _of_records(bundle: Path) -> dict[str, str]:
    """What the flight records give."""
    try:
        job = load([bundle], workers=1)
    except FlightRecordError as exc:
        told = f"No flight record in it can be used: {clean(str(exc), 300)}."
        return {"look": words("p", told, class_="none")}
    if not job.ranks:
        told = "No rank gave a flight record: what is here are stacks, states and last words."
        return {"look": words("p", told, class_="none"), "limits": _limits(job, None)}
    analysis = analyse(job)
    return {
        "look": _look(bundle, job, analysis),
        "graph": _fitting(graph(job, analysis) if analysis.findings else "", "the graph"),
        "timeline": _fitting(timeline(job, analysis), "the collectives"),
        "limits": _limits(job, analysis),
    }


def _look(bundle: Path, job: Job, analysis: Analysis) -> str:
    """The records' own verdict, and whether the monitor's agrees."""
    told = online(job, analysis, bundle_in([bundle]))
    facts = [] if told is None else lines(job, told)[1]
    shown = [(name, seen) for name, seen in facts if name in ("records of", "second look")]
    answer = sentence(headline(job, analysis.findings, analysis.culprits))
    rows = [
        words("dt", name) + words("dd", seen) for name, seen in [*shown, ("read", read_line(job))]
    ]
    reasons = [words("li", sentence(one.reason)) for one in analysis.findings[:6]]
    return (
        words("p", f"{answer}.", class_="reason")
        + (element("ul", *reasons) if reasons else "")
        + element("dl", *rows, class_="evidence")
    )


def _limits(job: Job, analysis: Analysis | None) -> str:
    notes = () if analysis is None else analysis.notes
    told = [*problem_lines(job), *(clean(note) for note in notes)]
    shown = [words("li", line) for line in told[:_LIMITS]]
    if len(told) > _LIMITS:
        shown.append(words("li", f"and {len(told) - _LIMITS} more: lightkeeper analyze"))
    return element("ul", *shown) if shown else ""


def _fitting(markup: str, what: str) -> str:
    if len(markup) <= _PART_MAX:
        return markup
    told = f"To draw {what} of so many ranks is too much for a page: lightkeeper analyze --html"
    return words("p", told, class_="none")


def _taken(bundle: Path, manifest: Manifest) -> dict[str, list[Taken]]:
    """Everybody's stacks, moment by moment."""
    found: dict[str, list[Taken]] = {}
    with zipfile.ZipFile(bundle) as opened:
        for moment in manifest.moments:
            name = _MOMENTS.get(moment.name)
            if name is not None:
                at = time_of_day(int(moment.began_s * 1e9))
                found[f"{name}, {at} UTC"] = list(_of_moment(opened, moment))
    return found


def _of_moment(opened: zipfile.ZipFile, moment: Moment) -> Iterator[Taken]:
    for part in moment.parts:
        if part.part != "stacks":
            continue
        if part.file is None:
            yield Taken(part.rank, None, part.error or part.status)
            continue
        try:
            with opened.open(part.file) as member:
                text = member.read(_STACKS_MAX).decode(errors="replace")
        except (KeyError, OSError, EOFError, ValueError, RuntimeError, NotImplementedError,
                zipfile.BadZipFile) as exc:  # fmt: skip
            yield Taken(part.rank, None, f"damaged: {exc}")
        else:
            yield Taken(part.rank, text)


def _keep(out: Path, body: dict[str, Any]) -> None:
    """Whole or not at all, readable by its owner only."""
    made = out.with_name(out.name + ".part")
    try:
        with open_new(made) as file:
            file.write(json.dumps(body).encode())
        os.replace(made, out)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise


def _say(why: str) -> int:
    sys.stderr.write(" ".join(why.split()) + "\n")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
