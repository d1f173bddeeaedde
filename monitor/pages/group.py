"""The pages of one replica group and of one host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.incident import Incident
from monitor.names import Host, group_of, split_rank_name
from monitor.pages.actions import Act, acts, evict, hold_out, let_in
from monitor.pages.banners import banners
from monitor.pages.context import Context
from monitor.pages.frame import Frame, frame
from monitor.pages.lists import concerning, history, record_of
from monitor.pages.ranks import how_to_read, ranks_table
from monitor.pages.states import EVICTING, UNKNOWN, chip, worst
from monitor.pages.table import Cell, facts, nothing, section
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, natural, path_of, span, utc, whole
from monitor.quarantine.record import HostRecord
from monitor.snapshot import Observation
from monitor.store import QuarantineEntry
from monitor.view import GroupView, groups_of


def group_page(context: Context) -> Frame:
    """One replica group."""
    name = context.place.name
    ranks = context.ranks_of(name)
    group = next((one for one in groups_of(context.view) if one.group == name), None)
    entry = next((one for one in context.view.quarantine_groups if one.name == name), None)
    state = worst(context.states[one.rank] for one in ranks) if ranks else UNKNOWN
    if name in context.view.evicting:
        state = EVICTING

    def concerns(one: Incident) -> bool:
        return name in one.groups or any(group_of(rank) == name for rank in one.verdict.victims)

    inside = [_title("Replica group", name, state), facts(_group_facts(group, ranks, entry))]
    doable = [evict(context, name)] if group is not None else []
    return _page(
        context, "group", inside=inside, ranks=ranks, incidents=concerning(context, concerns),
        doable=(*doable, _quarantine(entry, name, group=True)),
        found=bool(ranks or group or entry or context.history)
        or any(concerns(one) for one in context.view.incidents),
    )  # fmt: skip


def host_page(context: Context) -> Frame:
    """One host."""
    name = context.place.name
    ranks = sorted(
        (one for one in context.view.snapshot.observations if one.identity.host == name),
        key=lambda one: (natural(one.identity.group), one.identity.group_rank),
    )
    entry = next((one for one in context.view.quarantine if one.name == name), None)
    record = context.view.hosts.get(Host(name))
    state = worst(context.states[one.rank] for one in ranks) if ranks else UNKNOWN
    groups = {one.identity.group for one in ranks}
    told = facts([*_host_facts(ranks, entry), *record_of(record or HostRecord(Host(name)))])

    def concerns(one: Incident) -> bool:
        return name in one.hosts or bool(groups.intersection(one.groups))

    return _page(
        context, "host", inside=[_title("Host", name, state), told], ranks=ranks,
        incidents=concerning(context, concerns),
        doable=(_quarantine(entry, name, group=False),),
        found=bool(ranks or entry or record or context.history),
    )  # fmt: skip


def _page(
    context: Context,
    kind: str,
    *,
    inside: list[Node],
    ranks: Sequence[Observation],
    incidents: Node,
    doable: tuple[Act, ...],
    found: bool,
) -> Frame:
    name = context.place.name
    if not found:
        inside.append(nothing(f"No such {kind} is known: no rank of it has registered, and nothing "
                              "about it is remembered."))  # fmt: skip
    listed = ranks_table(context, ranks) if ranks else nothing("No rank is registered now.")
    read = how_to_read(ranks[0].rank) if context.guarded and ranks else None
    return frame(
        f"{kind} {name}",
        (banners(context),),
        (
            el("div", *inside, id="about", class_="about"),
            section("ranks", "Ranks", listed, read),
            incidents,
            history(context.history),
            acts(context, *doable),
        ),
        found=found,
    )


def _title(kind: str, name: str, state: str) -> Node:
    word = "no ranks" if state == UNKNOWN else state
    return el("h1", el("span", f"{kind} ", class_="kind"), name, " ", chip(state, word))


def _quarantine(entry: QuarantineEntry | None, name: str, *, group: bool) -> Act:
    return hold_out(name, group=group) if entry is None else let_in(entry, group=group)


def _kept_out(entry: QuarantineEntry | None) -> str:
    if entry is None:
        return "no"
    until = "until a person releases it" if entry.until_s is None else f"until {utc(entry.until_s)}"
    return f"by {entry.author}, {until}: {entry.reason}"


def _group_facts(
    group: GroupView | None, ranks: tuple[Observation, ...], entry: QuarantineEntry | None
) -> Iterator[tuple[str, Cell]]:
    hosts = sorted({one.identity.host for one in ranks}, key=natural)
    if group is not None:
        quorum = "not seen" if group.in_quorum is None else "yes" if group.in_quorum else "no"
        yield "in the quorum", quorum
        yield "step", whole(group.step)
        yield "commits", whole(group.commits)
        beat = group.heartbeat_age_s
        yield "heartbeat", NONE if beat is None else f"{span(beat)} ago"
        yield "replica id", group.replica_id or NONE
    yield "hosts", _linked("hosts", hosts)
    yield "quarantined", _kept_out(entry)


def _host_facts(
    ranks: list[Observation], entry: QuarantineEntry | None
) -> Iterator[tuple[str, Cell]]:
    groups = sorted({split_rank_name(one.rank)[0] for one in ranks}, key=natural)
    yield "runs", _linked("groups", groups)
    yield "quarantined", _kept_out(entry)


def _linked(kind: str, names: Sequence[str]) -> Cell:
    if not names:
        return NONE
    told: list[Node | str] = []
    for number, name in enumerate(names[:12]):
        told += [", "] if number else []
        told.append(el("a", name, href=path_of(kind, name)))
    if len(names) > 12:
        told.append(f" and {len(names) - 12} more")
    return el("span", *told)
