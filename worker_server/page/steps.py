"""The steps ring, read: what every attempt cost, as differences of neighbours."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from worker_server import wire
from worker_server.page import layout
from worker_server.page.mapped import NS

_SLOT = struct.Struct(f"@{layout.STEPS_LAST_WORD + 1}q")
_START = (0,) * (layout.STEPS_LAST_WORD + 1)
"""Stands before the first attempt: nothing was spent yet."""


class StepsRing:
    """Reads the attempts that are over."""

    def __init__(self, page: mmap.mmap, phase_names: Callable[[], list[str]]) -> None:
        self._map = page
        self._words = memoryview(page).cast("q")
        self._phase_names = phase_names

    @property
    def ended(self) -> int:
        """Attempts that are over."""
        return max(0, self._words[layout.W_ENDED])

    def since(self, attempt: int, now_ns: int) -> tuple[tuple[wire.StepRow, ...], int]:
        """Attempts after `attempt`, oldest first, and how many of them cannot be had any more.

        An attempt whose predecessor is overwritten is lost with it: its seconds are the
        difference of the two.
        """
        ended = self.ended
        asked = max(0, attempt)
        before = self._slot(max(asked, ended - layout.STEPS_SLOTS))
        rows = []
        for number in range(max(asked, ended - layout.STEPS_SLOTS) + 1, ended + 1):
            slot = self._slot(number)
            if slot is not None and before is not None:
                rows.append((before, slot))
            before = slot
        names = self._phase_names()
        found = tuple(_row(before, slot, names, now_ns) for before, slot in rows)
        return found, max(0, ended - asked - len(found))

    def _slot(self, attempt: int) -> tuple[int, ...] | None:
        """What the slot of this attempt says; None when a later one has it by now."""
        if not attempt:
            return _START
        at = layout.STEPS_WORD + attempt % layout.STEPS_SLOTS * layout.STEPS_SLOT_WORDS
        last = self._words[at + layout.STEPS_LAST_WORD]
        start = at * layout.WORD
        slot = _SLOT.unpack(self._map[start : start + _SLOT.size])
        return slot if self._words[at] == last == attempt else None


def _row(
    before: tuple[int, ...], slot: tuple[int, ...], names: list[str], now_ns: int
) -> wire.StepRow:
    attempt, step, begin_ns, end_ns, committed = slot[:5]
    spent = range(layout.STEPS_SPENT_WORD, layout.STEPS_LAST_WORD)
    return wire.StepRow(
        attempt=attempt,
        step=step,
        committed=bool(committed),
        end_age_s=max(0, now_ns - end_ns) * NS,
        duration_s=max(0, end_ns - begin_ns) * NS,
        seconds={
            name: (slot[n] - before[n]) * NS
            for name, n in zip(names, spent, strict=False)
            if slot[n] > before[n]
        },
    )
