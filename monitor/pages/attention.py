"""Who needs attention: the sick ranks, worst first, and why. Pure.

By their own health: who is put out because it is sick stays here until it is gone.
"""

from __future__ import annotations

from typing import Final

from monitor.pages.context import Context
from monitor.pages.ranks import doing, links, rank_link
from monitor.pages.states import ORDER, SICK, chip
from monitor.pages.table import Cell, nothing, section, table
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, path_of, whole
from monitor.reports.wording import counted, sentence
from monitor.snapshot import Observation
from monitor.view import Face, ended_of, trouble_of

_MOST: Final = 25
_HEADS: Final = ("rank", "state", "group", "host", "doing", "step", "trouble", "links")


def attention(context: Context) -> Node:
    """The sick ones in a table; the others are counted."""
    healths = context.view.result.rank_health
    sick = [one for one in context.view.snapshot.observations if healths.get(one.rank) in SICK]
    blamed = {rank: face for one, face in reversed(context.faces) for rank in one.culprits}
    sick.sort(
        key=lambda one: (
            one.rank not in blamed, ORDER[healths[one.rank]], -_age_s(one), one.rank
        )
    )  # fmt: skip
    waiting = sum(state == "waiting" for state in context.states.values())
    told = f"{counted(waiting, 'rank')} waits for others." if waiting == 1 else (
        f"{waiting:,} ranks wait for others." if waiting else "")  # fmt: skip
    if not sick:
        said = "Nobody: no rank is dead, silent or holds up others."
        if ended_of(context.view) is not None or not context.states:
            said = "No rank is left." if context.view.departures else "No rank is known yet."
        elif "late" in context.states.values():
            said = "Nobody is named yet: the next commit is late, and who holds it up is not known."
        return section("attention", "Who needs attention",
                       nothing(f"{said} {told}".strip()))  # fmt: skip
    more = len(sick) - _MOST
    rest = f"And {counted(more, 'rank')} more; the grid below has them. " if more > 0 else ""
    return section(
        "attention",
        "Who needs attention",
        table(
            _HEADS,
            [(one.rank, _row(context, one, blamed.get(one.rank))) for one in sick[:_MOST]],
            "Ranks that need attention",
        ),
        el("p", rest + told, class_="meta") if rest or told else None,
    )  # fmt: skip


def _age_s(seen: Observation) -> float:
    if seen.report is None:
        return 0.0
    dead_s = seen.report.process.dead_age_s
    step = seen.report.step
    return dead_s if dead_s is not None else 0.0 if step is None else step.phase_age_s


def _row(context: Context, seen: Observation, face: Face | None) -> tuple[Cell, ...]:
    identity, report = seen.identity, seen.report
    step = None if report is None or report.step is None else report.step.step
    return (
        rank_link(seen.rank),
        chip(context.states[seen.rank]),
        el("a", identity.group, href=path_of("groups", identity.group)),
        el("a", identity.host, href=path_of("hosts", identity.host)),
        doing(seen) or NONE,
        whole(step),
        sentence(face.says if face else trouble_of(seen)) or "It makes no progress",
        links(context, seen.rank),
    )
