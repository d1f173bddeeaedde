"""Stacks of the ranks of one moment: culprits first, victims with equal stacks together. Pure.

What py-spy prints is read (`Thread ID (idle): "MainThread"` and frames below it), and what
WorkerServers write alike; what looks otherwise is shown as it is. Two ranks are alike when their
main threads stand in the same lines: helper threads wait in their own good time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Final

from monitor.reports.incident_pieces import listed, rank_link
from monitor.reports.markup import element, escaped, words
from monitor.reports.wording import clean, counted

_THREAD: Final = re.compile(
    r'Thread [^"(:]{1,40}(?:\(([^)]{0,60})\))?:?(?: "(.{0,200})"| \((.{0,60})\))?'
)
"""By py-spy with what it does, by the rank itself without (`worker_server.frames`)."""
_BEFORE: Final = re.compile(r" ([0-9]{1,9}\.[0-9]) s before the rank died\Z")
"""How a WorkerServer heads what is left of a dead rank's: it is not where it died."""
_FRAMES, _THREADS, _NAMED = 60, 24, 24
_CROWDS: Final = 16
_LINE: Final = 240
_MAIN: Final = "MainThread"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rank gave when it was asked for its stacks."""

    rank: str
    text: str | None
    """None: none came."""
    why: str = ""
    """Why none came."""


@dataclass(frozen=True, slots=True)
class _Thread:
    name: str
    state: str
    frames: tuple[str, ...]
    """Innermost first."""


def by_moment(moments: Mapping[str, Sequence[Taken]], culprits: Sequence[str]) -> str:
    """All moments, the oldest first; opened where the culprits have moved since the one before."""
    parts, before = [], None
    for moment, taken in moments.items():
        now = {one.rank: _standing(_threads(one.text)) for one in taken
               if one.text is not None and one.rank in culprits}  # fmt: skip
        told = moment if before is None or now != before else f"{moment}: the culprits as before"
        parts.append(_stacks(told, taken, culprits, opened=now != before))
        before = now
    return "".join(parts)


def _stacks(moment: str, taken: Sequence[Taken], culprits: Sequence[str], *, opened: bool) -> str:
    """One moment's stacks; empty where nobody was asked."""
    if not taken:
        return ""
    accused = [one for one in taken if one.rank in culprits]
    others = [one for one in taken if one.rank not in culprits]
    return element(
        "div",
        words("h3", moment),
        *_crowds(accused, "culprit", opened=opened),
        *_crowds(others, "waits", opened=opened and not accused),
        *_missing(taken),
        class_="stacks",
    )


def _crowds(taken: Sequence[Taken], role: str, *, opened: bool) -> Iterator[str]:
    alike: dict[tuple[str, ...], list[tuple[Taken, list[_Thread]]]] = {}
    for one in taken:
        if one.text is not None:
            threads = _threads(one.text)
            alike.setdefault(_standing(threads), []).append((one, threads))
    ordered = sorted(alike.values(), key=lambda some: (-len(some), some[0][0].rank))
    for some in ordered[:_CROWDS]:
        yield _crowd(some, role, opened=opened)
    rest = sum(len(some) for some in ordered[_CROWDS:])
    if rest:
        yield words("p", f"{counted(rest, 'rank')} more stand elsewhere: the bundle has them.")


def _crowd(some: Sequence[tuple[Taken, list[_Thread]]], role: str, *, opened: bool) -> str:
    """Ranks that stand in the same lines."""
    first, threads = some[0]
    links = [rank_link(one.rank) for one, _ in some[:_NAMED]]
    main = _main(threads)
    at = "" if main is None or not main.frames else f" in {main.frames[0]}"
    if at and (before := _BEFORE.search((first.text or "").partition("\n")[0])):
        at = f"{at} (stack {before[1]} s before the death)"
    count = "" if len(some) == 1 else f"{counted(len(some), 'rank')}: "
    rest = [thread for thread in threads if thread is not main]
    old = _old(first.text or "")
    return element(
        "details",
        element(
            "summary",
            words("span", role, class_=f"chip {'bad' if role == 'culprit' else 'idle'}"), " ",
            escaped(count), element("b", listed([escaped(one.rank, 120) for one, _ in some[:3]],
                                                len(some))),
            words("span", at, class_="at"),
        ),
        element("p", listed(links, len(some)), escaped(f" {old}"), class_="meta"),
        *(_frames(thread, thread is main) for thread in ([] if main is None else [main])),
        _others(rest),
        class_=f"crowd {role}",
        data_key=f"{role}-{first.rank}",
        open="" if opened else None,
    )  # fmt: skip


def _old(text: str) -> str:
    """How a WorkerServer heads stacks that are not of this moment: of a dead rank's black box."""
    head = takewhile(lambda line: line.startswith("#"), text[:1000].splitlines())
    told = " ".join(line.lstrip("# ") for line in head)
    return f"({clean(told, 300)})" if told else ""


def _others(threads: Sequence[_Thread]) -> str:
    if not threads:
        return ""
    return element(
        "details",
        words("summary", f"{counted(len(threads), 'other thread')} of the first of them"),
        *(_frames(thread, False) for thread in threads[:_THREADS]),
    )


def _frames(thread: _Thread, leads: bool) -> str:
    shown = thread.frames[:_FRAMES]
    first = words("b", shown[0]) if shown else "no Python frame"
    lines = [first, *map(escaped, shown[1:])]
    if len(thread.frames) > _FRAMES:
        lines.append(f"... {len(thread.frames) - _FRAMES} more")
    head = words("p", f"{thread.name}, {thread.state}" if thread.state else thread.name)
    body = element("pre", "\n".join(lines), tabindex="0", role="group", aria_label=thread.name)
    return element("div", head, body, class_="thread main" if leads else "thread")


def _missing(taken: Sequence[Taken]) -> Iterator[str]:
    """Whose stacks did not come, by why."""
    by_why: dict[str, list[str]] = {}
    for one in taken:
        if one.text is None:
            by_why.setdefault(clean(one.why, 200), []).append(one.rank)
    for why, ranks in sorted(by_why.items())[:8]:
        shown = listed([escaped(rank, 120) for rank in ranks[:_NAMED]], len(ranks))
        yield element("p", "No stacks of ", shown, escaped(f": {why}"), class_="meta")


def _threads(text: str) -> list[_Thread]:
    """The threads of what py-spy printed; one nameless thread of anything else."""
    found: list[tuple[str, str, list[str]]] = []
    lines = dropwhile(lambda line: line.startswith("#"), text[:1_000_000].splitlines())
    for raw in takewhile(lambda line: not line.startswith("#"), lines):  # below are older ones
        head = _THREAD.fullmatch(raw)
        if head is not None:
            name = head[2] or head[3] or "a thread"
            found.append((clean(name, _LINE), clean(head[1] or "", 60), []))
        elif found and raw.strip():
            found[-1][2].append(clean(raw.strip(), _LINE))
    if not found:
        every = tuple(clean(line, _LINE) for line in text[:100_000].splitlines() if line.strip())
        return [_Thread("as it came", "", every)]
    return [_Thread(name, state, tuple(frames)) for name, state, frames in found]


def _main(threads: Sequence[_Thread]) -> _Thread | None:
    named = [one for one in threads if one.name == _MAIN]
    return next(iter(named or threads), None)


def _standing(threads: Sequence[_Thread]) -> tuple[str, ...]:
    main = _main(threads)
    return () if main is None else main.frames
