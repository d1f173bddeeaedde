"""Whom to ask: the culprits' groups whole, then of the victims those that show most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from monitor.detectors.verdict import Kind
from monitor.incident import Incident
from monitor.names import GroupName, RankName
from monitor.snapshot import Observation

NAMED: Final = 100
"""Ranks left out that are named; of more only the number is told."""

PEERS: Final = 4
"""Of a straggler's victims: enough for a median beside it."""


@dataclass(frozen=True, slots=True)
class Whom:
    """Ranks to ask, the most important first, and those for whom there was no room."""

    asked: tuple[Observation, ...]
    left_out: tuple[RankName, ...] = ()


def concerned(
    incident: Incident | None,
    groups: Iterable[GroupName],
    seen: Sequence[Observation],
    limit: int,
) -> Whom:
    """At most `limit` ranks: culprits, their groups, whom the verdict rests on, victims.

    A straggler's victims work: a few show the pace, and py-spy need not stop the others. Of the
    victims each group gives one before any gives a second: what waits in one group looks alike,
    what waits across groups does not.
    """
    present = {one.rank: one for one in seen}
    accused: tuple[RankName, ...] = () if incident is None else incident.culprits
    homes = {*groups, *(() if incident is None else incident.groups)}
    own = [one.rank for one in seen if one.identity.group in homes]
    wanted = [*accused, *own]
    if incident is not None:
        verdict = incident.verdict
        wanted += [RankName(name) for name in sorted(verdict.evidence) if name in present]
        victims = _in_turn(present[name] for name in verdict.victims if name in present)
        wanted += victims[:PEERS] if incident.kind is Kind.STRAGGLER else victims
    order = list(dict.fromkeys(wanted))
    there = [present[name] for name in order if name in present]
    gone = [name for name in order if name not in present]
    return Whom(tuple(there[:limit]), (*gone, *(one.rank for one in there[limit:])))


def _in_turn(seen: Iterable[Observation]) -> list[RankName]:
    """Ranks of several groups: the first of each, then the second of each."""
    groups: dict[GroupName, list[RankName]] = {}
    for one in seen:
        groups.setdefault(one.identity.group, []).append(one.rank)
    rounds = zip_longest(*(groups[name] for name in sorted(groups)))
    return [rank for turn in rounds for rank in turn if rank is not None]
