"""How a replay is told: as text with the stories first, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from monitor.commands.tables import moment, show, table, word
from monitor.journal.account import Account, Pair, Side, compared, pairs_to_json, parted_s
from monitor.journal.replay import Replayed
from monitor.reports.wording import clean

SCHEMA: Final = 1


def _text(value: str, style: str = "") -> Text:
    """A line; what ranks and hosts told cannot steer the terminal."""
    return Text(clean(value), style=style)


def _cell(value: Any) -> Text:
    return _text(show(value))


CONJECTURE: Final = (
    "an eviction in a what-if changes nothing of what was observed: the group was not killed, or "
    "was killed live all the same"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay came to."""

    live: Account
    now: Account
    ticks: int
    first_s: float | None
    last_s: float | None
    files: tuple[str, ...]
    versions: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]
    """Option -> live value, value of the what-if; empty when it is none."""
    difference: str | None
    """The first one from what was decided live."""
    notes: tuple[str, ...]
    damage: tuple[str, ...]


def report_to_json(report: Report) -> dict[str, Any]:
    """For programs."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "ticks": report.ticks,
        "from_s": report.first_s,
        "to_s": report.last_s,
        "files": list(report.files),
        "versions": list(report.versions),
        "incidents": report.now.all(),
        "decisions": report.now.decisions,
        "same": report.difference is None,
        "difference": report.difference,
        "notes": list(report.notes),
        "damage": list(report.damage),
    }
    if report.changes:
        body |= {
            "changes": {n: {"live": a, "what_if": b} for n, (a, b) in report.changes.items()},
            "compared": list(pairs_to_json(compared(report.live, report.now))),
            "conjecture_from_s": parted_s(report.live, report.now),
            "conjecture": CONJECTURE,
        }
    return body


def print_report(out: Console, report: Report) -> None:
    """For people."""
    span = f"{moment(report.first_s)} to {moment(report.last_s)}"
    versions = ", ".join(report.versions)
    out.print(_text(f"{report.ticks} ticks, {span}, recorded by lightkeeper {versions}"))
    for note in report.notes:
        out.print(_text(f"! {note}", style="yellow"))
    if report.changes:
        _print_what_if(out, report)
    elif report.difference is None:
        out.print(_text("decided as it was live", style="green"))
    else:
        out.print(_text(f"not as live: {report.difference}", style="bold red"))
    lasting = report.now.lasting()
    for incident in lasting:
        _print_story(out, incident, report.now)
    short = len(report.now.incidents) - len(lasting)
    if short:
        out.print(_text(f"{short} more did not last and never fired"))
    if not lasting:
        out.print(_text("no incident", style="green"))
    if report.now.decisions:
        out.print(_decisions(report.now.decisions))


def _print_story(out: Console, incident: Mapping[str, Any], account: Account) -> None:
    out.print()
    head = f"{incident['id']}: {incident['kind']}, {incident['state']}"
    out.print(_text(head, style="bold"))
    out.print(_text(str(incident["reason"])))
    for source, seen in incident["evidence"].items():
        out.print(_text(f"  {source}: {seen}"))
    began_s = incident["milestones"]["first_seen_s"]
    lines = [(line["at_s"], line["to"], line["reason"]) for line in incident["story"]]
    lines += [
        (one["at_s"], " ".join((one["action"], one.get("guard", ""))).strip(), one["reason"])
        for one in account.of(str(incident["id"]))
    ]
    story = table("", "when", "after", "to", "why")
    for at_s, to, reason in sorted(lines, key=lambda line: line[0]):
        story.add_row(
            _cell(moment(at_s)), _cell(f"{at_s - began_s:+.1f} s"), word(to), _cell(reason)
        )
    out.print(story)


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Any:
    made = table("decisions", "tick", "when", "decision", "about", "why")
    for one in decisions:
        about = one["group"] if one["action"] == "evict" else one["incident_id"]
        what = "evict" if one["action"] == "evict" else f"{one['action']}: {one['guard']}"
        made.add_row(
            _cell(one["tick"]),
            _cell(moment(one["at_s"])),
            _cell(what),
            _cell(about),
            _cell(one["reason"]),
        )
    return made


# -- what if ---------------------------------------------------------------------------------


def _print_what_if(out: Console, report: Report) -> None:
    told = ", ".join(f"{name}={new} (was {old})" for name, (old, new) in report.changes.items())
    out.print(_text(f"what if: {told}", style="bold"))
    pairs = compared(report.live, report.now)
    if not pairs:
        out.print(_text("nobody was accused live, and nobody would have been", style="green"))
        return
    columns = ("live: fired", "evicted", "over", "what if: fired", "evicted", "over")
    side_by_side = table("side by side", "fault", "culprits", *columns, "")
    for pair in pairs:
        side_by_side.add_row(
            _cell(pair.kind),
            _cell(list(pair.culprits)),
            *map(_cell, _side(pair.live)),
            *map(_cell, _side(pair.now)),
            _verdict(pair),
        )
    out.print(side_by_side)
    apart_s = parted_s(report.live, report.now)
    if apart_s is not None:
        out.print(
            _text(
                f"the evictions part at {moment(apart_s)}; what comes later is conjecture: "
                f"{CONJECTURE}",
                style="yellow",
            )
        )
    out.print(_text("what it would have said:", style="bold"))


def _side(side: Side | None) -> tuple[str, str, str]:
    if side is None:
        return "-", "-", "-"
    evicted = moment(side.evicted_s)
    if side.asked > 1:
        evicted += f" ({side.asked} times)"
    if side.held is not None:
        evicted = f"held: {side.held}"
    return moment(side.fired_s), evicted, moment(side.resolved_s)


def _verdict(pair: Pair) -> Text:
    match pair.live, pair.now:
        case Side(evicted_s=float()), None:
            return _text("not by the time it was evicted live", style="yellow")
        case _, None:
            return _text("not accused", style="yellow")
        case None, _ if pair.conjecture:
            return _text("conjecture", style="yellow")
        case None, _:
            return _text("accused only now", style="bold red")
        case _:
            return _text(
                "the same" if pair.same else "differs", style="" if pair.same else "yellow"
            )


# -- every tick ------------------------------------------------------------------------------


def print_tick(
    one: Replayed, out: Console | None, timeline: list[Mapping[str, Any]] | None
) -> None:
    """One tick as a line, or into the timeline."""
    if out is None and timeline is None:
        return
    snapshot, result = one.tick.snapshot, one.result
    verdicts = [
        {"kind": v.kind.value, "culprits": list(v.culprits), "reason": v.reason}
        for v in result.verdicts
    ]
    body = {
        "tick": snapshot.tick,
        "now_s": snapshot.now_s,
        "lateness_s": snapshot.lateness_s,
        "ranks": len(snapshot.observations),
        "silent": [str(o.rank) for o in snapshot.observations if o.report is None],
        "verdicts": verdicts,
        "changed": [str(incident["id"]) for incident in one.again.changed],
        "decisions": list(one.again.decisions),
        "records_wanted": list(one.again.wanted),
        "failures": {**(one.again.failures or {})},
        "crash": one.again.crash,
        "difference": one.difference(),
    }
    if timeline is not None:
        timeline.append(body)
    if out is not None:
        out.print(_text(_tick_line(body)), soft_wrap=True)


def _tick_line(body: Mapping[str, Any]) -> str:
    silent = f", silent: {', '.join(body['silent'])}" if body["silent"] else ""
    late = f", {body['lateness_s']:.1f} s late" if body["lateness_s"] >= 0.1 else ""
    parts = [f"{moment(body['now_s'])} tick {body['tick']}: {body['ranks']} ranks{silent}{late}"]
    parts += [f"{one['kind']} {', '.join(one['culprits'])}" for one in body["verdicts"]]
    parts += [
        f"evict {one['group']}" if one["action"] == "evict" else f"hold: {one['guard']}"
        for one in body["decisions"]
    ]
    parts += [f"detector {name} crashed: {why}" for name, why in body["failures"].items()]
    if body["crash"]:
        parts.append(f"crashed: {body['crash']}")
    if body["difference"]:
        parts.append(f"not as live: {body['difference']}")
    return "; ".join(parts)
