"""The stacks that are known of a rank, each headed by lines that say what it is and how old."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker_server.sidecar.stacks import Taken


@dataclass(frozen=True, slots=True)
class Known:
    """Stacks from one source."""

    source: str
    text: str
    age_s: float


def of_the_living(taken: Taken, now_s: float) -> str:
    """py-spy's text as it is; marked where an earlier request got it first."""
    if not taken.again:
        return taken.text
    return f"# by py-spy, {now_s - taken.taken_s:.2f} s ago, for an earlier request\n{taken.text}"


def instead(reason: str, note: tuple[str, float], *, native: bool) -> str:
    """What the beat wrote, where py-spy cannot look."""
    text, age_s = note
    lacks = "no native frames, " if native else ""
    return (
        f"# {reason}.\n"
        f"# These the rank wrote {age_s:.1f} s ago by its beat, once a second while its\n"
        f"# interpreter runs: not of this moment, {lacks}and nothing tells who was idle.\n{text}"
    )


def of_the_dead(known: Iterable[Known], dead_age_s: float) -> str:
    """All that is left, newest first.

    Raises:
        LookupError: nothing is.
    """
    parts = [
        f"# {one.source}, {one.age_s:.1f} s ago: {max(0.0, one.age_s - dead_age_s):.1f} s before "
        f"the rank died\n{one.text.rstrip()}\n"
        for one in sorted(known, key=lambda one: one.age_s)
    ]
    if not parts:
        raise LookupError("the rank is dead and no stacks were taken before it died")
    return "\n".join(parts)
