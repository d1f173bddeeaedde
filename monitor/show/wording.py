"""States, texts, numbers and times in few words, the same everywhere. Pure.

Text from outside becomes one harmless line here (`clean`); the templates escape markup.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:  # commands need only the words
    from lightkeeper.monitor.decide.view import View
    from lightkeeper.monitor.model.names import RankName
    from lightkeeper.monitor.model.observation import Observation
    from lightkeeper.worker_server.wire import StepState

LONGEST: Final = 2000
NONE: Final = "\N{EN DASH}"
"""For an unknown value."""
_DIGITS: Final = re.compile(r"([0-9]+)")


def clean(text: str, at_most: int = LONGEST) -> str:
    """Text from outside in one line, without characters that control a terminal or reorder text.

    Removes control, format (with bidirectional overrides) and surrogate characters; for why format
    characters, see Unicode Standard Annex 9 and "Trojan Source" (CVE-2021-42574).
    """
    if not (text.isascii() and text.isprintable()):
        line = "".join(" " if char.isspace() else char for char in text)
        harmless = (char for char in line if unicodedata.category(char) not in {"Cc", "Cf", "Cs"})
        text = " ".join("".join(harmless).split())  # last: a removed character may leave two blanks
    return text if len(text) <= at_most else text[: at_most - 1] + "…"


def sentence(text: str) -> str:
    """A reason as a sentence. A rank's name at its start keeps its case."""
    line = clean(text)
    begins = line.split(" ", 1)[0]
    return line[:1].upper() + line[1:] if begins.isalpha() and begins.islower() else line


def plain(name: object) -> str:
    """An identifier as words."""
    return str(name).replace("_", " ")


def listed(names: Sequence[Any], most: int) -> str:
    """`a, b, c and 7 more`."""
    shown = ", ".join(clean(str(name), 80) for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


_NAMED: Final = 5


def no_such(what: str, name: str, existing: Iterable[str]) -> str:
    """That nothing has this name, and the nearest names, else the first."""
    names = sorted({*existing} - {""})
    near = get_close_matches(name, names) or names
    some = ", ".join(clean(word, 80) for word in near[:_NAMED])
    more = f" and {len(near) - _NAMED:,} more" if len(near) > _NAMED else ""
    return f"no {what} {clean(name, 80)!r}" + (f"; there is {some}{more}" if some else "")


def span(seconds: float | None) -> str:
    """`0.4 s`, `43 s`, `12 min`, `3 h`, `5 days`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def since(seconds: float | None) -> str:
    """`12 s ago`."""
    return NONE if seconds is None else f"{span(seconds)} ago"


def utc(at_s: float | None) -> str:
    """`2026-11-23 04:44:21 UTC`."""
    return NONE if at_s is None else _moment(at_s, "%Y-%m-%d %H:%M:%S UTC")


def pause_line(pause: Mapping[str, Any]) -> str:
    """The pause switch, in one line."""
    if pause.get("ended_s") is not None:
        who = f"the pause by {pause['author']} ({pause['reason']})"
        return f"{pause['ended_by']} ended {who} at {utc(pause['ended_s'])}"
    until = "`lightkeeper resume`" if pause["until_s"] is None else utc(pause["until_s"])
    why = f"{pause['reason']} (nobody is evicted but by hand)"
    return f"PAUSED by {pause['author']} until {until}: {why}"


def time_of_day(at_s: float) -> str:
    """`04:44:21 UTC`, if the day is shown beside it."""
    return _moment(at_s, "%H:%M:%S UTC")


_UNKNOWN: Final = "an unknown time"


def _moment(at_s: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return _UNKNOWN


def moment(at_ns: int) -> str:
    """`04:44:21.123`, UTC, by a rank's own clock; unknown: a hyphen."""
    seconds, nanos = divmod(at_ns, 10**9)
    text = _moment(seconds, "%H:%M:%S") if at_ns >= 0 else _UNKNOWN
    return "-" if text == _UNKNOWN else f"{text}.{nanos // 10**6:03d}"


def whole(value: int | None) -> str:
    """`1,100`; unknown: a dash."""
    return NONE if value is None else f"{value:,}"


def doing(step: StepState | None) -> str:
    """`forward for 12 s`."""
    return "" if step is None else f"{step.phase} for {span(step.phase_age_s)}"


def figure(value: object) -> str:
    """0.3333333333 is 0.3333."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def path_of(kind: str, name: str) -> str:
    """`/groups/rg_1`."""
    return f"/{kind}/{quote(name, safe='', errors='replace')}"


@functools.lru_cache(maxsize=1 << 17)  # names recur at each look
def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts `rg_2` before `rg_10`."""
    return tuple(
        (False, int(part[:18]), part) if part.isascii() and part.isdigit() else (True, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


# -- The state of every rank, with its own shape beside its colour. Pure ---------------------------

EVICTING: Final = "evicting"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class StateLook:
    glyph: str
    """Unique by shape alone."""
    meaning: str


LOOKS: Final = {
    "dead": StateLook("✕", "its process has ended"),
    "unreachable": StateLook("◇", "its WorkerServer gives no answer"),
    "stalled": StateLook("▲", "it hangs, and others wait for it"),
    "corrupt": StateLook("✖", "its numbers are wrong"),
    "traced": StateLook("◉", "a debugger or a profiler holds it: no fault of its own"),
    "slow": StateLook("◆", "its pace holds the others up"),
    EVICTING: StateLook("▼", "its replica group is being evicted"),
    "starting": StateLook("○", "before its first commits; its usual pace is being learnt"),
    "late": StateLook("◔", "no commit for longer than usual; who holds it up is not known yet"),
    "waiting": StateLook("◐", "it waits for others"),
    "healthy": StateLook("●", "it makes progress"),
    "ended": StateLook("■", "it was asked to end: with the job, or because a peer had failed"),
    "finished": StateLook("✓", "its work is done"),
    UNKNOWN: StateLook("□", "the Lighthouse knows it, and no rank of it has registered"),
}
"""Worst first."""
ORDER: Final = {state: rank for rank, state in enumerate(LOOKS)}


def state_of(view: View, seen: Observation) -> str:
    """A rank's health, or that its group is being evicted."""
    health = view.result.rank_health.get(seen.rank)
    if health is None:
        return UNKNOWN
    over = health in ("dead", "ended", "finished")
    if seen.identity.group in view.evicting and not over:
        return EVICTING
    return str(health)


def states_of(view: View, *, late: bool) -> dict[RankName, str]:
    """Of every rank; none is healthy while the job's next commit is late."""
    states = {seen.rank: state_of(view, seen) for seen in view.snapshot.observations}
    if not late:
        return states
    return {rank: "late" if state == "healthy" else state for rank, state in states.items()}


def worst(states: Iterable[str]) -> str:
    """The state shown for several ranks."""
    return min(states, key=lambda state: ORDER[state], default=UNKNOWN)
