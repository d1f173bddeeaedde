"""What holds a rank up, in one word."""

from __future__ import annotations

from enum import StrEnum


class Standing(StrEnum):
    """What holds a rank up, if anything."""

    DEAD = "dead"
    SILENT = "silent"  # no report in this tick
    UNKNOWN = "unknown"  # no phases of its own, and nobody waits for it
    STOPPED = "stopped"  # by a signal (state T)
    TRACED = "traced"  # by a debugger or the like: somebody looks at it
    FROZEN = "frozen"  # the interpreter does not run: the GIL is held
    HELD = "held"  # inside an unfinished collective of its own group
    WAITING = "waiting"  # in communication across groups
    LEFT = "left"  # inside a collective that all have entered and a peer has left
    ALONE = "alone"  # works by itself
    OUTSIDE = "outside"  # reports no phases, and is not in the collective that others wait in
