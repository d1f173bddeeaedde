"""`lightkeeper replay`: decide over a monitor's journal again, as it was or "what if"."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from lightkeeper.monitor.commands.command import (
    DONE,
    FAILED,
    FILE,
    CommandError,
    as_json,
    command,
    gathered,
    option,
)
from lightkeeper.monitor.commands.offline import Judging
from lightkeeper.monitor.commands.policy import threshold, thresholds
from lightkeeper.monitor.commands.printing import console, print_json, show_table, text
from lightkeeper.monitor.decide.rules import Effective, Policy, PolicyError
from lightkeeper.monitor.decide.rules import changes as rules_changed
from lightkeeper.monitor.journal.entries import JournalEnd, JournalError
from lightkeeper.monitor.journal.replay import (
    Account,
    Closed,
    Opened,
    Replay,
    Replayed,
    find_journals,
    journal_events,
    parted_s,
    pipeline_of,
    read_head,
)
from lightkeeper.monitor.model.config import ConfigError, KeeperConfig
from lightkeeper.monitor.model.incident import Incident, incident_to_json
from lightkeeper.monitor.model.units import utc
from lightkeeper.monitor.rulebook import read_policy

# How a replay is reported: as text, stories first, or as JSON.

SCHEMA: Final = 1


CONJECTURE: Final = (
    "an eviction in a what-if changes nothing of what was observed: the group was not killed, or "
    "was killed live all the same"
)


@dataclass(slots=True)
class Journey:
    opened: Sequence[Opened]
    from_s: float
    """Start of the span shown, which ends at `to_s`."""
    to_s: float
    changes: Mapping[str, Any]
    """Options of the what-if."""
    policy: Policy | None = None
    """Its rules; None: the live ones."""
    live: Account = field(default_factory=Account)
    now: Account = field(default_factory=Account)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    difference: str | None = None
    """The first from the live decisions."""
    count: int = 0
    first_s: float | None = None
    last_s: float | None = None

    fresh: bool = False
    """True if the next tick is the first of a run, which may have earlier incidents."""

    @property
    def what_if(self) -> bool:
        return bool(self.changes) or self.policy is not None

    def changed(self) -> dict[str, Sequence[Any]]:
        """Option or rule -> live value, what-if value."""
        head = self.opened[0].head
        live, policy = head.config, head.policy if self.policy is None else self.policy
        rules = rules_changed(Effective(live, head.policy), Effective(live, policy))
        return {**rules, **{name: (getattr(live, name), new) for name, new in self.changes.items()}}

    def versions(self) -> list[str]:
        return sorted({file.head.version for file in self.opened})

    def take(self, replayed: Replayed) -> None:
        """Add a tick; those before the span matter for incidents still open."""
        number = replayed.tick.snapshot.tick
        if self.fresh:
            self.fresh = False
            new = {incident.id for incident in replayed.again.changed}
            earlier = [i for i in replayed.result.incidents if i.id not in new]
            self.live.seed(earlier)
            self.now.seed(earlier)
        self.live.take(replayed.tick.outcome, number, replayed.now_s)
        self.now.take(replayed.again, number, replayed.now_s)
        if replayed.now_s < self.from_s:
            return
        if self.count == 0:
            self.first_s = replayed.now_s
        self.count, self.last_s = self.count + 1, replayed.now_s
        if self.difference is None and (apart := replayed.difference()) is not None:
            self.difference = f"{apart} ({utc(replayed.now_s)})"


def replay_to_json(journey: Journey) -> dict[str, Any]:
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "ticks": journey.count,
        "from_s": journey.first_s,
        "to_s": journey.last_s,
        "files": [str(file.path) for file in journey.opened],
        "versions": journey.versions(),
        "incidents": [incident_to_json(incident) for incident in journey.now.all()],
        "decisions": journey.now.decisions,
        "same": journey.difference is None,
        "difference": journey.difference,
        "notes": journey.notes,
        "damage": journey.damage,
    }
    if journey.what_if:
        body |= {
            "changes": {n: {"live": a, "what_if": b} for n, (a, b) in journey.changed().items()},
            "live": {
                "incidents": [incident_to_json(incident) for incident in journey.live.all()],
                "decisions": journey.live.decisions,
            },
            "conjecture_from_s": parted_s(journey.live, journey.now),
            "conjecture": CONJECTURE,
        }
    return body


def print_replay(out: Console, journey: Journey) -> None:
    span = f"{utc(journey.first_s)} to {utc(journey.last_s)}"
    versions = ", ".join(journey.versions())
    out.print(text(f"{journey.count} ticks, {span}, recorded by lightkeeper {versions}"))
    for note in journey.notes:
        out.print(text(f"! {note}", style="yellow"))
    if journey.what_if:
        _print_what_if(out, journey)
    elif journey.difference is None:
        out.print(text("decided as it was live", style="green"))
    else:
        out.print(text(f"not as live: {journey.difference}", style="bold red"))
    lasting = journey.now.lasting()
    for incident in lasting:
        _print_story(out, incident, journey.now)
    short = len(journey.now.incidents) - len(lasting)
    if short:
        out.print(text(f"{short} more did not last and never fired"))
    if not lasting:
        out.print(text("no incident", style="green"))


def _print_story(out: Console, incident: Incident, account: Account) -> None:
    out.print()
    head = f"{incident.id}: {incident.kind}, {incident.state}"
    out.print(text(head, style="bold"))
    out.print(text(incident.verdict.reason))
    for source, seen in incident.verdict.evidence.items():
        out.print(text(f"  {source}: {seen}"))
    began_s = incident.milestones.first_seen_s
    lines = [(line.at_s, line.to, line.reason) for line in incident.story]
    for decision in account.of(incident.id):
        what = " ".join((decision["action"], decision.get("guard", ""))).strip()
        lines.append((decision["at_s"], what, decision["reason"]))
    rows = [
        (utc(at_s), f"{at_s - began_s:+.1f} s", to, reason)
        for at_s, to, reason in sorted(lines, key=lambda line: line[0])
    ]
    show_table(out, ("when", "after", "to", "why"), rows)


# -- what if ---------------------------------------------------------------------------------


def _print_what_if(out: Console, journey: Journey) -> None:
    changes = ", ".join(
        f"{name}={new} (was {old})" for name, (old, new) in journey.changed().items()
    )
    out.print(text(f"what if: {changes}", style="bold"))
    for name, account in (("live", journey.live), ("what if", journey.now)):
        evicted = ", ".join(f"{e['group']} {utc(e['at_s'])}" for e in account.evictions())
        fired = len(account.lasting())
        out.print(text(f"{name + ':':9}{fired} incidents, evicted: {evicted or 'nobody'}"))
    apart_s = parted_s(journey.live, journey.now)
    if apart_s is not None:
        apart = f"the evictions part at {utc(apart_s)}; what comes later is conjecture"
        out.print(text(f"{apart}: {CONJECTURE}", style="yellow"))
    out.print(text("what it would have said:", style="bold"))


# -- through the files ---------------------------------------------------------------------------


def _reaching(opened: Sequence[Opened], from_s: float) -> Sequence[Opened]:
    """Files from the last that begins before the span and can be replayed alone."""
    for place in range(len(opened) - 1, 0, -1):
        head = opened[place].head
        if head.began_s <= from_s:
            with contextlib.suppress(JournalError):
                if (whole := read_head(opened[place].path)) is not None:
                    pipeline_of(whole, whole.config)
                    return opened[place:]
    return opened


def _travel(journey: Journey) -> None:
    """Replay to the end of the span; then keep in the accounts only what concerns it."""
    again = Replay(journey.changes, journey.policy)
    for event in journal_events(_reaching(journey.opened, journey.from_s)):
        match event:
            case Opened():
                _board(journey, again, event)
            case Closed():
                if event.damage is not None:
                    journey.damage.append(f"{event.path}: {event.damage}")
                elif event.how is JournalEnd.CUT:
                    journey.notes.append(
                        f"{event.path.name} was cut short: its monitor was killed, still writes "
                        "it, or its disk was full"
                    )
            case _:
                if event.snapshot.now_s > journey.to_s:
                    break
                journey.take(again.tick(event))
    journey.live = journey.live.since(journey.from_s)
    journey.now = journey.now.since(journey.from_s)


def _board(journey: Journey, replay: Replay, opened: Opened) -> None:
    head, run = opened.head, replay.run
    follows = replay.begin(head)
    journey.fresh = not follows
    if follows or run is None:
        if run is None and head.after_tick is not None and journey.what_if:
            journey.notes.append(
                f"{opened.path.name} begins in the middle of a run, with what the monitor "
                "remembered under its own configuration"
            )
        return
    if run != head.run:
        journey.notes.append(f"{utc(head.began_s)}: the monitor was started again")
    else:
        lost = f", {head.lost} ticks were lost in this run" if head.lost else ""
        journey.notes.append(f"{utc(head.began_s)}: ticks before {opened.path.name} miss{lost}")


def _span(from_: str | None, to: str | None, began_s: float) -> tuple[float, float]:
    from_s = float("-inf") if from_ is None else parse_time(from_, began_s)
    to_s = float("inf") if to is None else parse_time(to, began_s)
    if from_s > to_s:
        raise CommandError(f"--from {from_} is after --to {to}")
    return from_s, to_s


# -- what the options say ----------------------------------------------------------------------


def _what_if(
    policy: Path | None, changed: tuple[str, ...]
) -> tuple[Mapping[str, Any], Policy | None]:
    """Options and rules that differ from the live ones; errors in them are raised before the
    files are read.
    """
    try:
        file = None if policy is None else read_policy(policy)
        chosen = {**({} if file is None else file.options), **thresholds(changed)}
        KeeperConfig.from_options(chosen)
    except (PolicyError, ConfigError) as exc:
        raise CommandError(str(exc)) from exc
    return chosen, None if file is None else file.policy


def parse_time(text: str, began_s: float) -> float:
    """Unix time of a date, a time of the day on which `began_s` lies, or Unix seconds.

    Raises:
        CommandError: none of these.
    """
    with contextlib.suppress(ValueError, OverflowError):
        seconds = float(text)
        if abs(seconds) < 1e11:
            return seconds
    for words in (text, f"{utc(began_s)[:10]}T{text}"):
        with contextlib.suppress(ValueError, OverflowError):
            at = datetime.datetime.fromisoformat(words)
            return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    raise CommandError(f"{text!r} is no time; expected 17:04, 2026-11-21T17:04:30 or Unix seconds")


# -- the command -------------------------------------------------------------------------------


@command(cls=Judging)
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="FILE...")
@as_json
@gathered(
    "what_if",
    _what_if,
    threshold("what if: another threshold of monitor/model/config.py, repeatable"),
    option("--policy", type=FILE, metavar="FILE",
           help="what if: another policy file, as `lightkeeper monitor --policy` reads it"),
)  # fmt: skip
@option("--from", "from_", metavar="TIME",
        help="show from here on: 17:04, 17:04:30 (of the first day), 2026-11-21T17:04, or Unix "
        "seconds; UTC unless it has a zone")  # fmt: skip
@option("--to", metavar="TIME", help="stop here")
@option("--check", is_flag=True, help="exit 1 where it does not decide as it did live")
def replay(
    *,
    paths: tuple[Path, ...],
    what_if: tuple[Mapping[str, Any], Policy | None],
    from_: str | None,
    to: str | None,
    check: bool,
    as_json: bool,
) -> int:
    """Decide over a monitor's journal again, as it was or "what if".

    what to give it:
      The folder into which a monitor writes its journal (beside its store: monitor.db ->
      monitor.journal), or some of its files. Every file can be replayed alone.

    examples:
      lightkeeper replay ~/.local/state/lightkeeper/monitor.journal   every incident with its story
      lightkeeper replay DIR --from 17:04 --to 17:30                  of a span
      lightkeeper replay DIR --check                                  does it decide as it did live?
      lightkeeper replay DIR --set stall_floor_s=30                   who would have been accused?
      lightkeeper replay DIR --policy new.toml                        and with another policy?
      lightkeeper replay DIR --set observe=true --format json | jq .live.incidents

    exit status:
      0  replayed; with --check: as live      1  with --check: not as live
      2  no usable input, or damaged in the middle (what comes before is shown)
    """
    if check and any(what_if):
        raise CommandError("--check compares with what was decided live: not with --set, --policy")
    try:
        opened, notes = find_journals(paths)
        journey = Journey(
            opened, *_span(from_, to, opened[0].head.began_s), *what_if, notes=list(notes)
        )
        _travel(journey)
    except (JournalError, ConfigError) as exc:
        raise CommandError(str(exc)) from exc
    if as_json:
        print_json(replay_to_json(journey))
    else:
        print_replay(console(), journey)
    if journey.damage:
        raise CommandError("; ".join(journey.damage))
    if journey.count == 0:
        where = "these files" if from_ is None and to is None else "this span"
        raise CommandError(f"no tick in {where}")
    return FAILED if check and journey.difference is not None else DONE
