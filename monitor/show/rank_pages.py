"""The pages of one group, one host and one rank, and what they share with the fleet's. Pure.

Rows of tables are made here, their order and words; markup is in templates/crowd.html (groups and
hosts), templates/rank.html and templates/ui.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.decide.view import GroupView, View, trouble_of
from monitor.model.eviction import QuarantineEntry, Scope
from monitor.model.incident import Incident
from monitor.model.names import Host, RankName, group_of, split_rank_name
from monitor.model.observation import Observation
from monitor.model.quarantine import HostRecord
from monitor.show.actions import Act, evict, hold_out, let_in
from monitor.show.incident_page import title
from monitor.show.pages import Context, Page, banners
from monitor.show.states import EVICTING, LOOKS, UNKNOWN, worst
from monitor.show.templating import sections, ui
from monitor.show.wording import (
    NONE,
    ago,
    counted,
    natural,
    plain,
    sentence,
    span,
    utc,
    whole,
)
from worker_server.wire import StateReport, StepState

Cells = tuple[str, tuple[str, ...]]
"""A row of a table: its key, and its cells: text, or markup of `ui`."""
Fact = tuple[str, str]
"""A name, and what it is."""
SOURCES: Final = ("state", "steps", "flight_recorder", "stacks", "last_words", "wait_counters")
"""Pages of a rank itself."""
_LATEST: Final = 4
_OPEN: Final = 40
_EVENTS: Final = 60
_MOST: Final = 512
"""Rows of one table."""


# Incidents and quarantine.


@dataclass(frozen=True, slots=True)
class ListedIncident:
    """One incident in a list."""

    id: str
    kind: str
    state: str
    severity: str
    title: str
    """As on its own page."""
    why: str
    when: str
    ago: str


def list_incidents(found: Iterable[Incident], now_s: float) -> list[ListedIncident]:
    """The open ones, then the latest of the others."""
    every = list(found)
    closed = [one for one in every if not one.open][:_LATEST]
    return [_listed(one, now_s) for one in (*[o for o in every if o.open][:_OPEN], *closed)]


def _concerning(context: Context, test: Callable[[Incident], bool]) -> list[ListedIncident]:
    """Those that concern a group, a host or a rank."""
    found = [one for one in context.view.incidents if test(one)][:_OPEN]
    return [_listed(one, context.fleet.now_s) for one in found]


def _listed(one: Incident, now_s: float) -> ListedIncident:
    first_s = one.milestones.first_seen_s
    return ListedIncident(
        one.id, str(one.kind), str(one.state), str(one.severity), title(one),
        sentence(one.verdict.reason), utc(first_s), ago(now_s - first_s),
    )  # fmt: skip


def quarantine_rows(view: View) -> list[Cells]:
    """Hosts and groups that are kept out."""
    return [
        (f"{one.scope}/{one.name}", _entry(view, one))
        for one in (*view.quarantine, *view.quarantine_groups)
    ]


def _entry(view: View, entry: QuarantineEntry) -> tuple[str, ...]:
    is_host = entry.scope is Scope.HOST
    record = view.hosts.get(entry.host) if is_host else None
    kind = "hosts" if is_host else "groups"
    return (
        ui.link(kind, entry.name, f"{entry.scope} {entry.name}"),
        utc(entry.since_s),
        "a person releases it" if entry.until_s is None else utc(entry.until_s),
        entry.author,
        f"{entry.reason} ({entry.note})" if entry.note else entry.reason,
        _incident_link(entry.incident_id),
        NONE if record is None else str(sum(record.incidents.values())),
        "lemon" if record is not None and record.lemon else "",
    )


def _incident_link(incident_id: str | None) -> str:
    return ui.link("incidents", incident_id) if incident_id else NONE


def record_of(record: HostRecord) -> list[Fact]:
    """What a host's last weeks say."""
    kinds = ", ".join(f"{plain(kind)} {n}" for kind, n in sorted(record.incidents.items()))
    return [
        ("lemon", record.lemon or "no"),
        ("accused of", kinds or "nothing"),
        ("offences that count", str(record.offences)),
        ("held up other groups", counted(record.wide, "time")),
        ("held up its own group alone", counted(record.narrow, "time")),
        ("evictions", str(record.evictions)),
        ("times in quarantine", f"{record.quarantines}, by people {record.exclusions}"),
        (
            "let in again",
            f"{counted(record.readmissions, 'time')}, {record.failed_readmissions} went wrong",
        ),
    ]


# Ranks.


@dataclass(frozen=True, slots=True)
class Line:
    """A rank in the card of its group or host."""

    rank: str
    state: str
    doing: str
    trouble: str
    more: str


def doing(seen: Observation) -> str:
    """`forward for 12 s`."""
    step = None if seen.report is None else seen.report.step
    if step is None:
        return ""
    return f"{step.phase} for {span(step.phase_age_s)}"


def pace(view: View, seen: Observation) -> tuple[str, str, str]:
    """Seconds a step, busy and waiting."""
    tempo = view.tempos.get(seen.rank)
    if tempo is None:
        return NONE, NONE, NONE
    wait_s = max(0.0, tempo.step_s - tempo.busy_s)
    return f"{tempo.step_s:.2f} s", f"{tempo.busy_s:.2f} s", f"{wait_s:.2f} s"


def loss_of(seen: Observation) -> str:
    """The loss, as far as it is told."""
    step = None if seen.report is None else seen.report.step
    return NONE if step is None or step.loss is None else f"{step.loss:.4g}"


def line_of(context: Context, seen: Observation) -> Line:
    """In a card."""
    step_s, busy, _ = pace(context.view, seen)
    loss = loss_of(seen)
    more = [] if step_s == NONE else [f"{step_s}/step, busy {busy}"]
    if loss != NONE:
        more.append(f"loss {loss}")
    trouble = sentence(trouble_of(seen))
    state = context.fleet.states[seen.rank]
    return Line(seen.rank, state, doing(seen), trouble, " · ".join(more))


def _row(context: Context, seen: Observation) -> Cells:
    """In a table."""
    step = None if seen.report is None else seen.report.step
    return seen.rank, (
        ui.link("ranks", seen.rank),
        ui.state(context.fleet.states[seen.rank]),
        doing(seen) or NONE,
        whole(None if step is None else step.step),
        whole(None if step is None else step.commits),
        *pace(context.view, seen),
        loss_of(seen),
        sentence(trouble_of(seen)),
        ui.sources(seen.rank, context.guarded),
    )


# The pages of one replica group and of one host.


def group_page(context: Context) -> Page:
    """One replica group."""
    name, fleet = context.place.name, context.fleet
    ranks = fleet.by_group.get(name, ())
    group = next((one for one in context.view.groups if one.group == name), None)
    entry = next((one for one in context.view.quarantine_groups if one.name == name), None)

    def concerns(one: Incident) -> bool:
        return name in one.groups or any(group_of(rank) == name for rank in one.verdict.victims)

    return _page(
        context, "group", ranks, _group_facts(group, ranks, entry), concerns,
        acts=[*([evict(fleet, name)] if group is not None else []),
              _quarantine(entry, name, group=True)],
        state=EVICTING if name in context.view.evicting else None,
        found=bool(ranks or group or entry or context.history)
        or any(concerns(one) for one in context.view.incidents),
    )  # fmt: skip


def host_page(context: Context) -> Page:
    """One host."""
    name = context.place.name
    ranks = context.fleet.by_host.get(name, ())
    entry = next((one for one in context.view.quarantine if one.name == name), None)
    record = context.view.hosts.get(Host(name))
    groups = {one.identity.group for one in ranks}

    def concerns(one: Incident) -> bool:
        return name in one.hosts or bool(groups.intersection(one.groups))

    return _page(
        context, "host", ranks,
        [*_host_facts(ranks, entry), *record_of(record or HostRecord(Host(name)))], concerns,
        acts=[_quarantine(entry, name, group=False)], state=None,
        found=bool(ranks or entry or record or context.history),
    )  # fmt: skip


def _page(
    context: Context,
    kind: str,
    ranks: Sequence[Observation],
    facts: Iterable[Fact],
    concerns: Callable[[Incident], bool],
    *,
    acts: list[Act],
    state: str | None,
    found: bool,
) -> Page:
    name, states = context.place.name, context.fleet.states
    state = state or worst(states[one.rank] for one in ranks)
    made = sections(
        "crowd.html",
        banners=banners(context.view),
        kind="Replica group" if kind == "group" else "Host",
        what=kind,
        name=name,
        state=state,
        state_word="no ranks" if state == UNKNOWN else state,
        facts=list(facts),
        found=found,
        ranks=[_row(context, seen) for seen in ranks[:_MOST]],
        ranks_left=len(ranks) - _MOST,
        guarded=context.guarded,
        sources=SOURCES,
        incidents=_concerning(context, concerns),
        history=[
            (str(one.id), (
                utc(one.at_s), str(one.change), one.author, one.reason,
                NONE if one.until_s is None else utc(one.until_s), _incident_link(one.incident_id),
            ))
            for one in context.history[:_EVENTS]
        ],
        why_not=context.why_not,
        acts=acts,
    )  # fmt: skip
    return Page(f"{kind} {name}", made, found=found)


def _quarantine(entry: QuarantineEntry | None, name: str, *, group: bool) -> Act:
    return hold_out(name, group=group) if entry is None else let_in(entry, group=group)


def _kept_out(entry: QuarantineEntry | None) -> str:
    if entry is None:
        return "no"
    until = "until a person releases it" if entry.until_s is None else f"until {utc(entry.until_s)}"
    return f"by {entry.author}, {until}: {entry.reason}"


def _group_facts(
    group: GroupView | None, ranks: Sequence[Observation], entry: QuarantineEntry | None
) -> Iterator[Fact]:
    hosts = sorted({one.identity.host for one in ranks}, key=natural)
    if group is not None:
        quorum = "not seen" if group.in_quorum is None else "yes" if group.in_quorum else "no"
        yield "in the quorum", quorum
        yield "step", whole(group.step)
        yield "commits", whole(group.commits)
        beat = group.heartbeat_age_s
        yield "heartbeat", NONE if beat is None else f"{span(beat)} ago"
        yield "replica id", group.replica_id or NONE
    yield "hosts", ui.links("hosts", hosts, 12) if hosts else NONE
    yield "quarantined", _kept_out(entry)


def _host_facts(ranks: Sequence[Observation], entry: QuarantineEntry | None) -> Iterator[Fact]:
    groups = sorted({split_rank_name(one.rank)[0] for one in ranks}, key=natural)
    yield "runs", ui.links("groups", groups, 12) if groups else NONE
    yield "quarantined", _kept_out(entry)


# The page of one rank.

_LETTERS: Final = {
    "R": "running", "S": "sleeping", "D": "in the kernel, cannot be interrupted",
    "T": "stopped by a signal", "t": "stopped by a tracer", "Z": "ended, not reaped", "I": "idle",
}  # fmt: skip


def rank_page(context: Context) -> Page:
    """One rank: what it does, how it keeps pace, where it stands in its collectives."""
    name, view = context.place.name, context.view
    seen = view.by_rank.get(RankName(name))

    def concerns(one: Incident) -> bool:
        return name in one.culprits or name in one.verdict.victims

    found = seen is not None or any(concerns(one) for one in view.incidents)
    state = UNKNOWN if seen is None else context.fleet.states[seen.rank]
    report = None if seen is None else seen.report
    trouble = "" if seen is None else sentence(trouble_of(seen))
    made = sections(
        "rank.html",
        banners=banners(view),
        name=name,
        state=state,
        state_word="not registered" if seen is None else state,
        seen=seen,
        trouble=trouble,
        meaning=sentence(LOOKS[state].meaning),
        facts=[] if seen is None else [*_step(view, seen), *_process(seen)],
        found=found,
        guarded=context.guarded,
        sources=SOURCES,
        reports=report is not None,
        phases=[] if report is None else _phases(report.step),
        heads=[] if report is None else _heads(report),
        incidents=_concerning(context, concerns),
    )
    return Page(f"rank {name}", made, found=found)


def _step(view: View, seen: Observation) -> Iterator[Fact]:
    identity = seen.identity
    yield "group", ui.link("groups", identity.group)
    yield "host", ui.link("hosts", identity.host)
    step = None if seen.report is None else seen.report.step
    if step is None:
        return
    step_s, busy, waits = pace(view, seen)
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


def _process(seen: Observation) -> Iterator[Fact]:
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


def _phases(step: StepState | None) -> list[Cells]:
    """Where its time went, the longest first."""
    spent = {} if step is None else {k: s for k, s in step.seconds.items() if s > 0}
    total = sum(spent.values())
    return [
        (phase, (phase, f"{seconds:,.1f} s", f"{100 * seconds / total:.0f} %",
                 ui.meter(f"{100 * seconds / total:.0f} %", round(seconds / total, 3),
                          f"share of {phase}")))
        for phase, seconds in sorted(spent.items(), key=lambda one: -one[1])
    ]  # fmt: skip


def _heads(report: StateReport) -> list[Cells]:
    """Where it stands in its collectives."""
    return [
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
