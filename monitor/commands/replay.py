"""`lightkeeper replay`: decide over a monitor's journal again, as it was or "what if"."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from monitor.commands import replay_options as options
from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.offline import add_format, judging
from monitor.commands.replay_text import Report, print_report, print_tick, report_to_json
from monitor.commands.tables import console, moment, print_json
from monitor.config import ConfigError
from monitor.incident import incident_to_json
from monitor.journal.account import Account
from monitor.journal.entries import JournalError
from monitor.journal.lines import End
from monitor.journal.reader import Closed, Opened, events, found, read_head
from monitor.journal.replay import Replay, Replayed, pipeline_of

EXAMPLES = """\
what to give it:
  The folder into which a monitor writes its journal (beside its store: monitor.db ->
  monitor.journal), or some of its files. Every file can be replayed alone.

examples:
  lightkeeper replay ~/.local/state/lightkeeper/monitor.journal     every incident with its story
  lightkeeper replay DIR --from 17:04 --to 17:30 --ticks            and what each tick brought
  lightkeeper replay DIR --check                                    does it decide as it did live?
  lightkeeper replay DIR --set stall_floor_s=30                     who would have been accused?
  lightkeeper replay DIR --set observe=true --format json | jq .compared

exit status:
  0  replayed; with --check: as live      1  with --check: not as live
  2  no usable input, or damaged in the middle (what comes before is shown)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Paths and options of `replay`."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE", help="journal files, or folders of them"
    )
    add_format(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what if: another threshold of monitor/config/, repeatable",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="what if: thresholds from a TOML or JSON file"
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="TIME",
        help="show from here on: 17:04, 17:04:30 (of the first day), 2026-11-21T17:04, or Unix "
        "seconds; local time unless it has a zone",
    )
    parser.add_argument("--to", metavar="TIME", help="stop here")
    parser.add_argument("--ticks", action="store_true", help="also show every tick")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where it does not decide as it did live"
    )


@judging
def run(args: argparse.Namespace) -> int:
    """Replay and report."""
    try:
        return _run(args)
    except (JournalError, ConfigError) as exc:
        raise CommandError(str(exc), USAGE) from exc


@dataclass(slots=True)
class _Span:
    """What is shown."""

    from_s: float
    to_s: float


@dataclass(slots=True)
class _Journey:
    """A replay under way."""

    span: _Span
    changes: Mapping[str, Any]
    ticks: Console | None = None
    """Where every tick is printed, if anywhere."""
    timeline: list[Mapping[str, Any]] | None = None
    live: Account = field(default_factory=Account)
    now: Account = field(default_factory=Account)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    difference: str | None = None
    count: int = 0
    first_s: float | None = None
    last_s: float | None = None

    fresh: bool = False
    """Whether the next tick is the first of a journey that brings incidents along."""

    def take(self, one: Replayed) -> None:
        """One tick; those before the span count for what is still open then."""
        number = one.tick.snapshot.tick
        if self.fresh:
            self._seed(one)
        self.live.take(one.tick.told, number, one.now_s)
        self.now.take(one.again, number, one.now_s)
        if one.now_s < self.span.from_s:
            return
        if self.count == 0:
            self.first_s = one.now_s
        self.count, self.last_s = self.count + 1, one.now_s
        if self.difference is None and (apart := one.difference()) is not None:
            self.difference = f"{apart} ({moment(one.now_s)})"
        print_tick(one, self.ticks, self.timeline)

    def _seed(self, one: Replayed) -> None:
        self.fresh = False
        new = {incident["id"] for incident in one.again.changed}
        kept = [incident_to_json(i) for i in one.result.incidents if i.id not in new]
        self.live.seed(kept)
        self.now.seed(kept)


def _run(args: argparse.Namespace) -> int:
    changes = options.changes(args)
    if changes and args.check:
        raise CommandError("--check compares with what was decided live: not with --set", USAGE)
    opened, notes = found(args.paths)
    span = _span(args, opened[0].head.began_s)
    as_json = args.format == "json"
    journey = _Journey(
        span=span,
        changes=changes,
        ticks=console() if args.ticks and not as_json else None,
        timeline=[] if args.ticks and as_json else None,
        notes=list(notes),
    )
    _travel(journey, _reaching(opened, span.from_s))
    report = _report(journey, opened)
    if as_json:
        body = report_to_json(report)
        print_json(body if journey.timeline is None else {**body, "timeline": journey.timeline})
    else:
        print_report(console(), report)
    if journey.damage:
        raise CommandError("; ".join(journey.damage), USAGE)
    if journey.count == 0:
        where = "these files" if args.from_ is None and args.to is None else "this span"
        raise CommandError(f"no tick in {where}", USAGE)
    return FAILED if args.check and journey.difference is not None else DONE


def _reaching(opened: Sequence[Opened], from_s: float) -> Sequence[Opened]:
    """The files from the last one on that begins before the span and can stand alone."""
    for place in range(len(opened) - 1, 0, -1):
        head = opened[place].head
        if head.began_s <= from_s:
            with contextlib.suppress(JournalError):
                if (whole := read_head(opened[place].path)) is not None:
                    pipeline_of(whole, whole.config)
                    return opened[place:]
    return opened


def _travel(journey: _Journey, opened: Sequence[Opened]) -> None:
    replay = Replay(journey.changes)
    for event in events(opened):
        match event:
            case Opened():
                _board(journey, replay, event)
            case Closed():
                if event.damage is not None:
                    journey.damage.append(f"{event.path}: {event.damage}")
                elif event.how is End.CUT:
                    journey.notes.append(
                        f"{event.path.name} was cut short: its monitor was killed, still writes "
                        "it, or its disk was full"
                    )
            case _:
                if event.snapshot.now_s > journey.span.to_s:
                    return
                journey.take(replay.tick(event))


def _board(journey: _Journey, replay: Replay, opened: Opened) -> None:
    head, run = opened.head, replay.run
    follows = replay.begin(head)
    journey.fresh = not follows
    if follows or run is None:
        if run is None and head.after_tick is not None and journey.changes:
            journey.notes.append(
                f"{opened.path.name} begins in the middle of a run, with what the monitor "
                "remembered under its own configuration"
            )
        return
    if run != head.run:
        journey.notes.append(f"{moment(head.began_s)}: the monitor was started again")
    else:
        lost = f", {head.lost} ticks were lost in this run" if head.lost else ""
        journey.notes.append(f"{moment(head.began_s)}: ticks before {opened.path.name} miss{lost}")


def _report(journey: _Journey, opened: Sequence[Opened]) -> Report:
    first = opened[0].head
    live = {name: getattr(first.config, name) for name in journey.changes}
    return Report(
        live=journey.live.since(journey.span.from_s),
        now=journey.now.since(journey.span.from_s),
        ticks=journey.count,
        first_s=journey.first_s,
        last_s=journey.last_s,
        files=tuple(str(one.path) for one in opened),
        versions=tuple(sorted({one.head.version for one in opened})),
        changes={name: (live[name], journey.changes[name]) for name in journey.changes},
        difference=journey.difference,
        notes=tuple(journey.notes),
        damage=tuple(journey.damage),
    )


def _span(args: argparse.Namespace, began_s: float) -> _Span:
    from_s = float("-inf") if args.from_ is None else options.parse_time(args.from_, began_s)
    to_s = float("inf") if args.to is None else options.parse_time(args.to, began_s)
    if from_s > to_s:
        raise CommandError(f"--from {args.from_} is after --to {args.to}", USAGE)
    return _Span(from_s, to_s)
