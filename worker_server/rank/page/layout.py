"""Where everything lies in the page. Raise `VERSION` with every change here.

All numbers are native 8-byte words at 8-byte offsets, so the kernel and both processes see each
word whole; times are CLOCK_MONOTONIC nanoseconds, which all processes of a host share. Several
words are read together as follows:

- *Phase*, *begun*, *step*, *spoilt*, *prints*, *waits*, every *note* and every *time* have two
  slots each; write number n goes to slot n % 2. A slot carries n before its body and again after
  it. The writer stores the first stamp, the body, the last stamp; the reader loads the last stamp,
  the body, the first stamp. The slot is whole if the two agree. A writer that is stopped or killed
  in the middle of a write leaves the previous slot whole, so a reader always finds one.
- A *ring slot* carries its ticket the same way. Its exit words are stored later, each whole.
- A slot of the *steps ring* carries its attempt's number the same way.
  Attempt n lies in slot n % STEPS_SLOTS; every attempt ends exactly once, so none is left out.
- *Counters* and *tag bits* are single words, each stored and read whole.
- Names are strings in an append-only table; the count is stored after the bytes.
- A row of the *transfers* is given to another peer by storing 0 into its first word, then the rest,
  then the first word. Two equal loads of a row are whole.

The order of stores is the program's on x86-64. On a CPU with weaker ordering (aarch64) a reader may
see a mix for some nanoseconds; values are bounds-checked, so the cost is one wrong reading.
"""

from __future__ import annotations

import functools
import struct
from itertools import accumulate, groupby
from typing import Final, NamedTuple

MAGIC: Final = int.from_bytes(b"LKPAGE01", "little")
VERSION: Final = 10
WORD: Final = 8


class SlotPair(NamedTuple):
    """Two slots of words: a stamp, `values` values, the same stamp again."""

    word: int
    """Where the first slot begins."""
    stride: int
    """Words from one slot to the next."""
    values: int


class NameTable(NamedTuple):
    """Names numbered as they come: of phases, of tags or of counters."""

    offset: int
    count_word: int
    """The word with their number; stored after the name."""
    most: int


NONE: Final = -(2**62)
"""Means "absent" in a word that may hold any number."""
RETIRED: Final = 2**62
"""Above every sequence id."""

# -- header, in words ---------------------------------------------------------------------
W_MAGIC: Final = 0
W_VERSION: Final = 1
W_TOTAL_BYTES: Final = 2
W_IDENTITY_BYTES: Final = 3
W_START_TICKS: Final = 4
"""Field 22 of /proc/PID/stat: with the pid it uniquely identifies a process."""
W_CLOSED: Final = 5
"""Bit 0: the rank reported that its work is over; its death is then an ending, not a failure.
Bit 1: its interpreter is ending; silent Python threads then do not mean a held GIL."""
W_BEAT: Final = 6
W_GROUPS: Final = 7
W_STRINGS: Final = 8
W_PHASES: Final = 9
W_TAGS: Final = 10
W_COUNTERS: Final = 11
W_TAG_BITS: Final = 12
"""Bit n is set while tag n is on."""
W_ENDED: Final = 13
"""The last attempt in the steps ring; stored after it."""
W_STEP_SOURCE: Final = 14
"""String number of the source of the steps; `NO_STRING`: none yet."""
W_PHASE_SOURCE: Final = 15
W_WAITS_DECLARED: Final = 16
"""1 once the training loop itself entered the phase in which a rank waits for others."""
W_STARTED: Final = 17
"""When counting of phases began."""
BEGUN: Final = SlotPair(18, 3, 1)
"""Step of the attempt begun last; the stamp is the attempt."""

W_REPLICA: Final = 24
"""String number of the TorchFT Manager's replica id, once there is one."""
W_GRADIENTS: Final = W_REPLICA + 1
"""1 while gradients are checked for non-finite numbers."""
W_BACKENDS: Final = W_GRADIENTS + 1
"""String number of the backends of all process groups: `gloo,nccl`."""
W_UNHOOKED: Final = W_BACKENDS + 1
"""String number of the names to hook that this version of a library lacks."""
W_TIMEOUT_COLLECTIVE: Final = W_UNHOOKED + 1
"""Nanoseconds after which a wait ends by itself, as the program configured it; 0: not known."""
W_TIMEOUT_QUORUM: Final = W_TIMEOUT_COLLECTIVE + 1
W_TIMEOUT_COMMIT: Final = W_TIMEOUT_QUORUM + 1
W_LIGHTHOUSE: Final = W_TIMEOUT_COMMIT + 1
"""String number of the address of the Lighthouse that the TorchFT Manager asks."""

IDENTITY_OFFSET: Final = 256
IDENTITY_BYTES: Final = 1792

# -- phase and step slots -------------------------------------------------------------------
PHASE: Final = SlotPair(2048 // WORD, 8, 2)
"""phase, since; the stamp is the progress."""
SPENT_WORD: Final = PHASE.word + 2 * PHASE.stride
"""Nanoseconds spent in each phase, finished ones only. Stored within the phase's write, after its
first stamp: the sum is `since` minus `W_STARTED`, or exceeds it by the phase that is ending."""

STEP: Final = SlotPair(2304 // WORD, 32, 14)
STEP_BODY: Final = struct.Struct("@13qdq")
"""step, attempt, commits, last commit, quorum, participants, healing, errored, replica id, tokens,
loss kind, committed step, failures, loss, last stamp. Written when an attempt ends; one begun later
is in `BEGUN`."""
LOCAL_STEPS_WORD: Final = STEP.word + 2 * STEP.stride
"""Steps of the optimizer that no vote of their own followed."""

SOURCE_PARTIAL: Final = "partial"
"""The loop reports its steps, but never in which phase it waits for others."""

LOSS_ABSENT: Final = 0
LOSS_FINITE: Final = 1
LOSS_NOT_FINITE: Final = 2

NAME_BYTES: Final = 32
"""A phase's, a tag's or a counter's, with the final NUL."""

MAX_PHASES: Final = 16
FIRST_PHASES: Final = ("init", "other")
PHASE_INIT: Final = 0
"""Before the first step."""
PHASE_OTHER: Final = 1
"""Within a step, outside of every named phase."""
PHASE_NAMES: Final = NameTable(3072, W_PHASES, MAX_PHASES)

# -- times of TorchFT's parts -----------------------------------------------------------------
TIME_STAGING: Final = 0
"""Making a checkpoint ready for a group that heals from this one."""
TIME_LOAD: Final = 1
"""Loading a checkpoint from another group."""
TIME_QUORUM: Final = 2
TIME_RECONFIGURE: Final = 3
TIME_APPLY: Final = 4
"""Applying the loaded state, in the training loop's own thread."""
TIME_NAMES: Final = ("staging", "load", "quorum", "reconfigure", "apply")
MAX_TIMES: Final = 8
TIMES: Final = tuple(SlotPair(4096 // WORD + 16 * kind, 8, 5) for kind in range(MAX_TIMES))
"""count, sum ns, last ns, total bytes, bytes of the last; a pair for each part."""

# -- user-defined tags and counters --------------------------------------------------------------
MAX_TAGS: Final = 16
TAG_NAMES: Final = NameTable(5120, W_TAGS, MAX_TAGS)
MAX_COUNTERS: Final = 16
COUNTER_NAMES: Final = NameTable(5632, W_COUNTERS, MAX_COUNTERS)
COUNTER_WORD: Final = 6144 // WORD
"""Doubles."""

# -- soundness of the state: non-finite numbers, fingerprints of the weights ----------------------
SPOILT: Final = SlotPair(6400 // WORD, 8, 5)
"""first step, place, since, attempts in a row, attempts in all."""
PLACES: Final = ("local", "group", "exchanged")
"""Where a non-finite number was first seen; see `wire.Spoilt`."""
PRINTS_KEPT: Final = 3
"""Fingerprints: enough for a 1 Hz poll of groups a step apart to find a step that all have."""
PRINTS: Final = SlotPair(6656 // WORD, 16, 2 + 3 * PRINTS_KEPT)
"""lane, lineage; step, value and part of each, newest last."""

# -- what the training thread waits in -------------------------------------------------------------
WAIT_COLLECTIVE: Final = 0
"""For a collective: the heads show which."""
WAIT_QUORUM: Final = 1
WAIT_COMMIT: Final = 2
WAIT_HEAL: Final = 3
WAITS: Final = SlotPair(6912 // WORD, 8, 3)
"""what it waits in (0: nothing that is shown here), since, nanoseconds waited before."""

# -- process groups -------------------------------------------------------------------------
MAX_GROUPS: Final = 64
GROUP_OFFSET: Final = 8192
GROUP_BYTES: Final = 512
GROUP_NAME_BYTES: Final = 64
GROUP_MEMBERS_BYTES: Final = 384
GROUP_HEAD_OFFSET: Final = GROUP_NAME_BYTES + GROUP_MEMBERS_BYTES
"""size, enqueued, completed, op, entered, left, inside, held: nanoseconds spent inside collectives
while no phase said that the rank waits. Sends and receives do not count here."""
GROUP_HEAD_WORDS: Final = 8


def group_head(index: int) -> int:
    """The word at which this group's head begins."""
    return (GROUP_OFFSET + index * GROUP_BYTES + GROUP_HEAD_OFFSET) // WORD


# -- sends and receives -----------------------------------------------------------------------
MAX_TRANSFERS: Final = 128
"""Rows; beyond that, the one unused for longest is given to another peer."""
TRANSFER_COUNT_WORD: Final = (GROUP_OFFSET + MAX_GROUPS * GROUP_BYTES) // WORD
TRANSFER_HEAD_WORDS: Final = 11
"""group + 1 (0: the row changes hands), then as in a group's head, then peer, tag, sends."""
_TRANSFER_STRIDE: Final = 16


def transfer_head(index: int) -> int:
    """The word at which this row begins; row `MAX_TRANSFERS` belongs to those without one."""
    return TRANSFER_COUNT_WORD + (1 + index) * _TRANSFER_STRIDE


# -- strings --------------------------------------------------------------------------------
MAX_STRINGS: Final = 1024
STRING_BYTES: Final = 160
STRING_OFFSET: Final = transfer_head(MAX_TRANSFERS + 1) * WORD
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
RING_BODY: Final = struct.Struct(f"@16q{RING_SHAPES_BYTES}sq")
"""group, seq, op, dtype, reduce op, root, step, attempt, nth, site, enter, exit, error, async,
thread, tag, shapes, last stamp. The first stamp is the ticket + 1; 0 means never used. Bit 0 of
async is the flag itself; the rest is 1 + the quorum id for which TorchFT configured the group, or
0."""
RING_QUORUM_SHIFT: Final = 1
RING_EXIT_WORD: Final = 12
RING_ERROR_WORD: Final = 13

# -- the steps ring -------------------------------------------------------------------------
STEPS_SLOTS: Final = 4096
"""Four seconds at 1,000 steps a second: a poll at 1 Hz may be late three times in a row."""
STEPS_SLOT_WORDS: Final = 24
STEPS_WORD: Final = (RING_OFFSET + RING_SLOTS * RING_SLOT_BYTES) // WORD
STEPS_HEAD: Final = struct.Struct("@4q")
"""After the attempt: step, begin, end, committed. Then, cumulative, the time spent in each phase at
the end, the running phase included; then the attempt again."""
STEPS_SPENT_WORD: Final = 1 + STEPS_HEAD.size // WORD
STEPS_LAST_WORD: Final = STEPS_SPENT_WORD + MAX_PHASES

# -- notes: texts that the rank leaves ---------------------------------------------------------
NOTE_STACKS: Final = 0
NOTE_EXCEPTION: Final = 1
"""The thread, what it raised in one line, the traceback."""
MAIN_THREAD: Final = "the main thread"
NOTE_FORMING: Final = 2
"""The process group that is being created, as JSON; empty: none."""
NOTE_HIDDEN: Final = 3
"""The last error that TorchFT hid from the program: its traceback."""
NOTE_TRACKERS: Final = 4
"""Runs of experiment trackers, as JSON."""
NOTE_HEADER_BYTES: Final = 32
"""first stamp, time, bytes of text, last stamp; the text follows."""
NOTE_SLOT_BYTES: Final = (32 * 1024, 8 * 1024, 4 * 1024, 8 * 1024, 4 * 1024)
_NOTES_END: Final = tuple(
    accumulate(
        (2 * size for size in NOTE_SLOT_BYTES),
        initial=(STEPS_WORD + STEPS_SLOTS * STEPS_SLOT_WORDS) * WORD,
    )
)
NOTE_OFFSETS: Final = _NOTES_END[:-1]
NOTE_CUT: Final = "\n... cut"
"""Ends a note that was too long."""

TOTAL_BYTES: Final = _NOTES_END[-1]


_LARGEST: Final = 2**63 - 1
_MAX_MEMBERS: Final = 1_000_000
_MAX_SHAPES: Final = 100_000
"""More means a corrupt page, which must not use up the reader's memory."""


class SharedPageError(Exception):
    """The file is not a page of this version, or not a whole one."""


def encode_name(name: str, size: int) -> bytes:
    """A name as it is stored: cut at a whole character, without its final NUL.

    Names that are stored alike are one name.
    """
    blob = name.replace("\0", "?").encode(errors="replace")[: size - 1]
    return blob.decode(errors="ignore").encode() or b"?"


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
    """Inverse of `encode_members`; empty if a stray write of the rank's went over it."""
    ranks: list[int] = []
    try:
        for piece in filter(None, text.split(",")):
            span, _, stride = piece.partition(":")
            first, dash, last = span.partition("-")
            members = range(int(first), int(last if dash else first) + 1, int(stride or 1))
            if len(members) + len(ranks) > _MAX_MEMBERS or not _in_bounds(
                *members[:1], *members[-1:]
            ):
                return ()
            ranks.extend(members)
    except (ValueError, OverflowError):
        return ()
    return tuple(ranks)


def _in_bounds(*numbers: int) -> bool:
    return all(0 <= number <= _LARGEST for number in numbers)


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
    runs = ((".".join(map(str, shape)) or "s", len([*same])) for shape, same in groupby(sizes))
    return [f"{shape}*{count}" if count > 1 else shape for shape, count in runs]


@functools.lru_cache(maxsize=1024)  # programs repeat shapes
def decode_shapes(text: str) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Inverse of `encode_shapes`; empty if a stray write of the rank's went over it."""
    sizes_in, _, sizes_out = text.rstrip("~").partition(">")
    try:
        return _shapes(sizes_in), _shapes(sizes_out)
    except ValueError:
        return (), ()


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    shapes: list[tuple[int, ...]] = []
    for run in filter(None, text.split(";")):
        dims, _, count = run.partition("*")
        shape = () if dims == "s" else tuple(int(dim) for dim in dims.split("."))
        times = int(count or 1)
        if times + len(shapes) > _MAX_SHAPES or not _in_bounds(*shape):
            raise ValueError(f"{times} times {dims}")
        shapes.extend([shape] * times)
    return tuple(shapes)
