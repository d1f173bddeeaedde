"""What the ranks' own past says of a call: see `habit`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from monitor.analysis.calls import Calls, past
from monitor.analysis.habit import Habit, habit
from monitor.flight_recorder.job import Job

_WITNESSES: Final = 8
"""Ranks of one side whose past is looked at: they run the same program."""


class Witness:
    """The past of a job's ranks, asked once for each call."""

    def __init__(self, job: Job, calls: Calls) -> None:
        self._job = job
        self._calls = calls
        self._known: dict[int, Habit] = {}

    def of(self, rows: Iterable[int]) -> Habit:
        """Whether the calls in these rows are usual at their place; UNKNOWN when they differ."""
        habits = {self._one(row) for row in islice(rows, _WITNESSES)} - {Habit.UNKNOWN}
        return habits.pop() if len(habits) == 1 else Habit.UNKNOWN

    def _one(self, row: int) -> Habit:
        rank = int(self._job.columns["rank"][row])
        if self._job.ranks[rank].only_active:
            return Habit.UNKNOWN  # what is over was left out: there is no past
        if row not in self._known:
            self._known[row] = habit(past(self._job, self._calls, row))
        return self._known[row]
