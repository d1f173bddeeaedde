"""The page of one rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.incident import Incident
from monitor.pages.banners import banners
from monitor.pages.context import Context
from monitor.pages.frame import Frame, frame
from monitor.pages.lists import concerning
from monitor.pages.ranks import PAGES, doing, how_to_read, links, loss_of, pace
from monitor.pages.states import LOOKS, UNKNOWN, chip
from monitor.pages.table import Cell, facts, nothing, section, table
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, path_of, span, whole
from monitor.reports.incident_pieces import plain
from monitor.reports.wording import sentence
from monitor.snapshot import Observation
from monitor.view import trouble_of
from worker_server.wire import StateReport, StepState

_LETTERS = {
    "R": "running", "S": "sleeping", "D": "in the kernel, cannot be interrupted",
    "T": "stopped by a signal", "t": "stopped by a tracer", "Z": "ended, not reaped", "I": "idle",
}  # fmt: skip


def rank_page(context: Context) -> Frame:
    """One rank: what it does, how it keeps pace, where it stands in its collectives."""
    name = context.place.name
    seen = next((one for one in context.view.snapshot.observations if one.rank == name), None)

    def concerns(one: Incident) -> bool:
        return name in one.culprits or name in one.verdict.victims

    found = seen is not None or any(concerns(one) for one in context.view.incidents)
    state = UNKNOWN if seen is None else context.states[seen.rank]
    word = "not registered" if seen is None else state
    title = el("h1", el("span", "Rank ", class_="kind"), name, " ", chip(state, word))
    about = [title, *_about(context, seen)]
    if not found:
        about.append(nothing("No such rank is known: it has not registered, and no incident that "
                             "is remembered names it."))  # fmt: skip
    parts = [el("div", *about, id="about", class_="about"),
             section("sources", "What the rank itself says", *_sources(context, name))]  # fmt: skip
    if seen is not None and seen.report is not None:
        parts += [_phases(seen.report.step), _heads(seen.report)]
    parts.append(concerning(context, concerns))
    return frame(f"rank {name}", (banners(context),), tuple(parts), found=found)


def _about(context: Context, seen: Observation | None) -> Iterator[Node]:
    if seen is None:
        return
    said = trouble_of(seen)
    state = context.states[seen.rank]
    yield el("p", sentence(said) if said else sentence(LOOKS[state].meaning),
             class_="trouble" if said else "meta")  # fmt: skip
    yield facts([*_step(context, seen), *_process(seen)])


def _step(context: Context, seen: Observation) -> Iterator[tuple[str, Cell]]:
    identity = seen.identity
    yield "group", el("a", identity.group, href=path_of("groups", identity.group))
    yield "host", el("a", identity.host, href=path_of("hosts", identity.host))
    step = None if seen.report is None else seen.report.step
    if step is None:
        return
    step_s, busy, waits = pace(context, seen)
    yield "doing", doing(seen)
    yield "step", whole(step.step)
    yield "commits", whole(step.commits)
    yield "last commit", NONE if step.last_commit_age_s is None else (
        f"{span(step.last_commit_age_s)} ago")  # fmt: skip
    yield "attempts that failed", whole(step.commit_failures)
    yield "a step", step_s
    yield "busy", busy
    yield "waits", waits
    yield "loss", loss_of(seen) if step.loss_finite else "not finite"
    yield "tokens", whole(step.tokens)
    yield "quorum", whole(step.quorum_id)
    yield "participants", whole(step.participants)
    yield "heals now", "yes" if step.healing else "no"
    if step.tags:
        yield "says that it does", ", ".join(step.tags)


def _process(seen: Observation) -> Iterator[tuple[str, Cell]]:
    identity, report = seen.identity, seen.report
    if report is not None:
        if report.unhooked:
            yield "does not see", f"{', '.join(report.unhooked)}: not in this version of TorchFT"
        process = report.process
        letter = process.state or "gone"
        yield "process", f"{letter}: {_LETTERS[letter]}" if letter in _LETTERS else letter
        yield "threads", whole(process.threads)
        rss = process.rss_bytes
        yield "memory", NONE if rss is None else f"{rss / 2**20:,.0f} MiB"
        age_s = process.interpreter_age_s
        yield "interpreter ran", NONE if age_s is None else f"{span(age_s)} ago"
    yield "pid", str(identity.pid)
    yield "incarnation", identity.incarnation
    yield "WorkerServer", seen.url
    yield "accelerators", whole(identity.accelerators)
    for key, value in sorted(identity.place.items()):
        yield plain(key), value


def _sources(context: Context, name: str) -> Iterator[Node]:
    if context.guarded:
        yield how_to_read(name)
        return
    yield el("p", links(context, name, PAGES))


def _phases(step: StepState | None) -> Node:
    spent = {} if step is None else {k: s for k, s in step.seconds.items() if s > 0}
    if not spent:
        return section("phases", "Where its time went", nothing("It reports no phases."))
    total = sum(spent.values())
    rows = [
        (phase, (phase, f"{seconds:,.1f} s", f"{100 * seconds / total:.0f} %",
                 el("meter", f"{100 * seconds / total:.0f} %", value=round(seconds / total, 3),
                    aria_label=f"share of {phase}")))
        for phase, seconds in sorted(spent.items(), key=lambda one: -one[1])
    ]  # fmt: skip
    heads = ("phase", "since it started", "share", "")
    return section("phases", "Where its time went", table(heads, rows, "Seconds by phase"))


def _heads(report: StateReport) -> Node:
    if not report.heads:
        return section("heads", "Where it stands in its collectives",
                       nothing("It has told of no collective."))  # fmt: skip
    rows = [
        (
            one.name,
            (
                one.name,
                whole(one.size),
                whole(one.enqueued),
                whole(one.completed),
                one.op or NONE,
                f"inside of {one.inside:,}" if one.inside else "in none",
                f"{span(one.age_s)} ago",
            ),
        )
        for one in report.heads
    ]
    heads = ("process group", "ranks", "entered", "left", "last", "now", "since")
    return section("heads", "Where it stands in its collectives",
                   table(heads, rows, "Process groups"))  # fmt: skip
