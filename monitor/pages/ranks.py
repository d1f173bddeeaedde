"""Ranks one by one: a line in a card, a row in a table, the links to what a rank says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from monitor.pages.context import Context
from monitor.pages.states import chip
from monitor.pages.table import Cell, table
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, path_of, span, whole
from monitor.reports.wording import sentence
from monitor.snapshot import Observation
from monitor.view import trouble_of

PAGES: Final = ("state", "steps", "flight_recorder", "stacks", "last_words", "wait_counters")
_FEW: Final = ("state", "flight_recorder", "stacks")
_MOST: Final = 512
"""Rows of one table."""


def rank_link(rank: str) -> Node:
    """To the rank's page here."""
    return el("a", rank, href=path_of("ranks", rank))


def links(context: Context, rank: str, pages: Sequence[str] = _FEW) -> Node:
    """To what the rank itself says; without the token a link would be refused."""
    base = f"/v1/ranks/{quote(rank, safe='')}"
    if context.guarded:
        told = (el("span", page.replace("_", " "), class_="off", data_key=page) for page in pages)
        return el("span", *_spaced(told), class_="links", title="these need the token: see below")
    told = (
        el("a", page.replace("_", " "), href=f"{base}/{page}", data_key=page,
           aria_label=f"{page.replace('_', ' ')} of {rank}")
        for page in pages
    )  # fmt: skip
    return el("span", *_spaced(told), class_="links")


def _spaced(nodes: Iterator[Node]) -> Iterator[Node | str]:
    for number, node in enumerate(nodes):
        if number:
            yield " "
        yield node


def how_to_read(rank: str) -> Node:
    """What to run where a link would be refused."""
    command = f'curl -H "Authorization: Bearer $TOKEN" $MONITOR/v1/ranks/{quote(rank, safe="")}/'
    return el(
        "p",
        "This monitor is open to the network, so what a rank itself says needs the token: ",
        el("code", command + "stacks"),
        f" (or {', '.join(page for page in PAGES if page != 'stacks')}), with $MONITOR this "
        "page's address; or start the monitor with --open-reads.",
        class_="meta",
    )


def doing(seen: Observation) -> str:
    """`forward for 12 s`."""
    step = None if seen.report is None else seen.report.step
    if step is None:
        return ""
    return f"{step.phase} for {span(step.phase_age_s)}"


def pace(context: Context, seen: Observation) -> tuple[str, str, str]:
    """Seconds a step, busy and waiting."""
    tempo = context.view.tempos.get(seen.rank)
    if tempo is None:
        return NONE, NONE, NONE
    wait_s = max(0.0, tempo.step_s - tempo.busy_s)
    return f"{tempo.step_s:.2f} s", f"{tempo.busy_s:.2f} s", f"{wait_s:.2f} s"


def loss_of(seen: Observation) -> str:
    """The loss, as far as it is told."""
    step = None if seen.report is None else seen.report.step
    return NONE if step is None or step.loss is None else f"{step.loss:.4g}"


def line(context: Context, seen: Observation) -> Node:
    """A rank in the card of its group or host."""
    step_s, busy, _ = pace(context, seen)
    said, loss = trouble_of(seen), loss_of(seen)
    more = [] if step_s == NONE else [f"{step_s}/step, busy {busy}"]
    if loss != NONE:
        more.append(f"loss {loss}")
    return el(
        "div",
        el("span", rank_link(seen.rank), class_="name"),
        chip(context.states[seen.rank]),
        el("span", doing(seen), class_="doing"),
        el("span", sentence(said), class_="trouble") if said else None,
        el("span", links(context, seen.rank), " ", " · ".join(more), class_="more"),
        class_="rank",
        data_key=seen.rank,
    )


_HEADS: Final = ("rank", "state", "doing", "step", "commits", "a step", "busy", "waits", "loss",
                 "trouble", "links")  # fmt: skip


def ranks_table(context: Context, observations: Sequence[Observation]) -> Node:
    """Each rank with its figures."""
    shown = observations[:_MOST]
    made = table(_HEADS, [(one.rank, _row(context, one)) for one in shown], "Ranks")
    if len(observations) <= _MOST:
        return made
    return el("div", made, el("p", f"And {len(observations) - _MOST:,} more.", class_="meta"))


def _row(context: Context, seen: Observation) -> tuple[Cell, ...]:
    step = None if seen.report is None else seen.report.step
    return (
        rank_link(seen.rank),
        chip(context.states[seen.rank]),
        doing(seen) or NONE,
        whole(None if step is None else step.step),
        whole(None if step is None else step.commits),
        *pace(context, seen),
        loss_of(seen),
        sentence(trouble_of(seen)),
        links(context, seen.rank),
    )
