"""What a watcher in a pipe is told: a fact's word when it changes, never the step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.reports.wording import clean
from monitor.terminal.answers import Asked, answers
from monitor.terminal.fleet import count
from monitor.terminal.grid import word
from monitor.terminal.words import listed

_MOST: Final = 20
"""Groups told one by one in one look."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: about what, its word, and a sentence."""

    about: str
    word: str
    text: str


Facts = Mapping[str, Fact]


def facts_of(asked: Asked) -> dict[str, Fact]:
    """Everything that can change, by what it is about."""
    found = [Fact(word(one.about), one.word, one.text) for one in answers(asked)]
    lighthouse = asked.fleet.body["lighthouse"]
    if lighthouse["up"]:
        members = [one["group"] for one in lighthouse["members"]]
        text = f"{len(members)} members: {listed(members, 3) or 'nobody'}"
        found.append(Fact("quorum", str(lighthouse["quorum_id"]), text))
    found += [
        Fact(f"group:{word(one.name)}", one.health, f"step {word(one.step)} on {one.host}")
        for one in asked.fleet.groups
    ]
    found += incident_facts([*asked.recent, *asked.fleet.incidents]).values()
    return {one.about: one for one in found}


def incident_facts(incidents: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    """One an incident."""
    return {
        f"incident:{one['id']}": Fact(
            f"incident:{word(clean(str(one['id'])))}",
            str(one["state"]),
            clean(f"{one['severity']}: {one['says']}", 400),
        )
        for one in incidents
    }


def changed(before: Facts | None, now: Facts) -> Iterator[Fact]:
    """What to tell; at first all but what is well, which is counted."""
    groups = 0
    for about, fact in now.items():
        was = None if before is None else before.get(about)
        if was is not None and was.word == fact.word:
            continue
        if before is None and _well(fact):
            continue
        if about.startswith("group:"):
            groups += 1
            if groups > _MOST:
                continue
        yield fact
    if groups > _MOST:
        yield Fact("groups", "more", f"and {groups - _MOST:,} more groups changed")
    for about, fact in (before or {}).items():
        if about not in now and not about.startswith("incident:"):
            yield Fact(fact.about, "gone", "no longer known here")


def summary(asked: Asked) -> Fact:
    """The groups in one line, said first."""
    found = count(asked.fleet.groups)
    text = ", ".join(f"{number:,} {health}" for health, number in found.items()) or "none"
    return Fact("groups", str(len(asked.fleet.groups)), text)


def _well(fact: Fact) -> bool:
    if fact.about.startswith("group:"):
        return fact.word == "healthy"
    return fact.about.startswith("incident:") and fact.word == "resolved"
