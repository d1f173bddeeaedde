"""Where everything lies in the page. Change anything here and raise `VERSION`.

All numbers are native 8-byte words at 8-byte offsets, so that the kernel and both processes
see each of them whole; times are CLOCK_MONOTONIC nanoseconds, which all processes of a host
share. How several words are read together:

- *Phase* and *step* have two slots each and write number n goes to slot n % 2. A slot carries
  n before its body and n again after it. The writer stores the first stamp, the body, the
  last stamp; the reader loads the last stamp, the body, the first stamp, and the slot is
  whole when the two agree. A writer that is stopped or killed in the middle of a write leaves
  the former slot whole: a reader always finds one.
- A *ring slot* carries its ticket in the same way. Its exit words are stored later, each whole.
- Names are strings in an append-only table; the count is stored after the bytes.

The order of stores is the program's on x86-64. A CPU with weaker ordering (aarch64) may let a
reader see a mix for some nanoseconds; values are bounds-checked, so that costs accuracy once.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = int.from_bytes(b"LKPAGE01", "little")
VERSION: Final = 1
WORD: Final = 8

NONE: Final = -(2**62)
"""Stands for "not there" in a word that may hold any number."""

# -- header, in words ---------------------------------------------------------------------
W_MAGIC: Final = 0
W_VERSION: Final = 1
W_TOTAL_BYTES: Final = 2
W_IDENTITY_BYTES: Final = 3
W_START_TICKS: Final = 4
"""Field 22 of /proc/PID/stat: with the pid it names a process for ever."""
W_CLOSED: Final = 5
"""1 once the rank said that its work is over: its death is then an ending, not a failure."""
W_BEAT: Final = 6
W_GROUPS: Final = 7
W_STRINGS: Final = 8
W_PHASES: Final = 9

IDENTITY_OFFSET: Final = 256
IDENTITY_BYTES: Final = 1792

# -- phase and step slots -------------------------------------------------------------------
PHASE_WORD: Final = 2048 // WORD
PHASE_SLOT_WORDS: Final = 8
"""first stamp (= progress), phase, since, last stamp."""

STEP_WORD: Final = 2304 // WORD
STEP_SLOT_WORDS: Final = 32
STEP_BODY: Final = struct.Struct("@11qdq")
"""step, attempt, commits, last commit, quorum, participants, healing, errored, replica id,
tokens, loss kind, loss, last stamp."""

LOSS_ABSENT: Final = 0
LOSS_FINITE: Final = 1
LOSS_NOT_FINITE: Final = 2

MAX_PHASES: Final = 16
FIRST_PHASES: Final = ("init", "other")
PHASE_INIT: Final = 0
"""Before the first step."""
PHASE_OTHER: Final = 1
"""Within a step, outside of every named phase."""
PHASE_NAME_OFFSET: Final = 3072
PHASE_NAME_BYTES: Final = 32
SPENT_WORD: Final = 3584 // WORD

# -- process groups -------------------------------------------------------------------------
MAX_GROUPS: Final = 64
GROUP_OFFSET: Final = 4096
GROUP_BYTES: Final = 512
GROUP_NAME_BYTES: Final = 64
GROUP_MEMBERS_BYTES: Final = 384
GROUP_HEAD_OFFSET: Final = GROUP_NAME_BYTES + GROUP_MEMBERS_BYTES
"""size, enqueued, completed, op, entered, left, inside."""
GROUP_HEAD_WORDS: Final = 7

# -- strings --------------------------------------------------------------------------------
MAX_STRINGS: Final = 1024
STRING_BYTES: Final = 160
STRING_OFFSET: Final = GROUP_OFFSET + MAX_GROUPS * GROUP_BYTES
MAX_ERRORS: Final = 256
"""Strings that errors may take, so that they never crowd out op names and call sites."""
FIRST_STRINGS: Final = ("", "(name table full)")
NO_STRING: Final = 0
TABLE_FULL: Final = 1

# -- the ring -------------------------------------------------------------------------------
RING_SLOTS: Final = 1024
RING_SLOT_BYTES: Final = 256
RING_OFFSET: Final = STRING_OFFSET + MAX_STRINGS * STRING_BYTES
RING_SHAPES_BYTES: Final = 112
RING_BODY: Final = struct.Struct(f"@14q{RING_SHAPES_BYTES}sq")
"""group, seq, op, dtype, reduce op, root, step, attempt, nth, site, enter, exit, error,
async, shapes, last stamp. The first stamp is the ticket + 1; 0 means never used."""
RING_EXIT_WORD: Final = 12
RING_ERROR_WORD: Final = 13

TOTAL_BYTES: Final = RING_OFFSET + RING_SLOTS * RING_SLOT_BYTES


class PageError(Exception):
    """The file is not a page of this version, or not a whole one."""


def encode_members(ranks: list[int] | tuple[int, ...]) -> str:
    """Ranks as text: `0-7`, `0-14:2` (with a stride), pieces joined by commas."""
    pieces: list[str] = []
    i = 0
    while i < len(ranks):
        stride = ranks[i + 1] - ranks[i] if i + 1 < len(ranks) else 0
        j = i
        while stride > 0 and j + 1 < len(ranks) and ranks[j + 1] - ranks[j] == stride:
            j += 1
        if j - i < 2:
            pieces.append(str(ranks[i]))
            i += 1
            continue
        pieces.append(f"{ranks[i]}-{ranks[j]}" + (f":{stride}" if stride > 1 else ""))
        i = j + 1
    return ",".join(pieces)


def decode_members(text: str) -> tuple[int, ...]:
    """Inverse of `encode_members`."""
    ranks: list[int] = []
    for piece in filter(None, text.split(",")):
        span, _, stride = piece.partition(":")
        first, dash, last = span.partition("-")
        ranks.extend(range(int(first), int(last) + 1, int(stride or 1)) if dash else [int(first)])
    return tuple(ranks)


def encode_shapes(sizes_in: list[tuple[int, ...]], sizes_out: list[tuple[int, ...]]) -> bytes:
    """Shapes as text: `4.128;7>2.3*8` is in (4, 128), (7); out eight times (2, 3).

    What does not fit is cut off at a whole shape and marked by a trailing `~`.
    """
    text = b">".join(";".join(_runs(sizes)).encode() for sizes in (sizes_in, sizes_out))
    if len(text) <= RING_SHAPES_BYTES:
        return text
    cut = text[: RING_SHAPES_BYTES - 1]
    return cut[: max(cut.rfind(b";"), cut.rfind(b">")) + 1] + b"~"


def _runs(sizes: list[tuple[int, ...]]) -> list[str]:
    runs: list[tuple[tuple[int, ...], int]] = []
    for shape in sizes:
        if runs and runs[-1][0] == shape:
            runs[-1] = (shape, runs[-1][1] + 1)
        else:
            runs.append((shape, 1))
    return [
        (".".join(map(str, shape)) or "s") + (f"*{count}" if count > 1 else "")
        for shape, count in runs
    ]


def decode_shapes(text: str) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Inverse of `encode_shapes`."""
    sizes_in, _, sizes_out = text.rstrip("~").partition(">")
    return _shapes(sizes_in), _shapes(sizes_out)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    shapes: list[tuple[int, ...]] = []
    for run in filter(None, text.split(";")):
        dims, _, count = run.partition("*")
        shape = () if dims == "s" else tuple(int(dim) for dim in dims.split("."))
        shapes.extend([shape] * int(count or 1))
    return tuple(shapes)
