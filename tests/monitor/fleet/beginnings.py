"""What runs that begin alike share: most scripts let the same fleet train for 20 s before anything
happens.

The first of them keeps fleet, pipeline and decisions as they are after so many ticks, and others
continue from a copy. A run is like another as far as its `alter` changes nothing either.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from lightkeeper.monitor.model.observation import Snapshot
from tests.monitor.fleet.rank import START_S

if TYPE_CHECKING:
    from lightkeeper.monitor.decide.pipeline import TickResult
    from tests.monitor.fleet.drive import Drive

MARKS: Final = (60, 40, 30, 20)
"""Ticks after which a run is kept."""
_KEPT: Final = 50
_DECIDED: Final = ("evicts", "holds", "releases", "fired", "seen", "_wanted", "_past")


class _Kept(NamedTuple):
    snapshots: tuple[Snapshot, ...]
    results: tuple[TickResult, ...]
    state: bytes


kept: Final[OrderedDict[tuple[bytes, int], _Kept]] = OrderedDict()
"""By how a run begins, and its ticks. Tests that replace code of the product begin without."""


class Beginning:
    """The ticks of a run before anything happens."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.alter = drive.alter
        self.snapshots: list[Snapshot] = []
        self.altered: list[Snapshot] = []
        """Of the ticks to come: `alter` sees each snapshot once."""

    def run(self, ticks: int) -> None:
        """The first ticks of it, at most so many."""
        drive, faults = self.drive, len(self.drive.fleet.script)
        try:
            key = pickle.dumps((type(drive.fleet), drive.config, self._state()))
        except (pickle.PicklingError, AttributeError, TypeError):
            return  # a test has replaced a method: the run is like no other
        self._continue([kept[key, mark] for mark in MARKS if mark <= ticks and (key, mark) in kept])
        drive.alter = self._alter_once
        while len(drive.results) < min(ticks, MARKS[0]):
            drive.step()
            number = len(drive.results)
            if len(self.snapshots) < number or len(drive.fleet.script) < faults:
                break
            if number in MARKS:
                state = pickle.dumps(self._state())
                kept[key, number] = _Kept((*self.snapshots,), (*drive.results,), state)
        while self.altered:
            drive.step()
        drive.alter = self.alter
        while len(kept) > _KEPT:
            kept.popitem(last=False)

    def _continue(self, others: list[_Kept]) -> None:
        """With the longest that is like this run."""
        drive, script = self.drive, self.drive.fleet.script
        fault_s = START_S + script[0][0] if script else math.inf
        fitting = [each for each in others if each.snapshots[-1].now_s < fault_s]
        same = 0
        for snapshot in fitting[0].snapshots if fitting else ():
            self.altered.append(self.alter(snapshot))
            if self.altered[-1] != snapshot:
                break
            same += 1
        for beginning in fitting:
            if len(beginning.results) <= same:
                fleet, memory, decided = pickle.loads(beginning.state)
                vars(drive.fleet).update(fleet)
                drive.pipeline.remember(memory)
                vars(drive).update(decided, results=[*beginning.results])
                self.snapshots = [*beginning.snapshots]
                del self.altered[: len(beginning.results)]
                return

    def _alter_once(self, snapshot: Snapshot) -> Snapshot:
        altered = self.altered.pop(0) if self.altered else self.alter(snapshot)
        if altered == snapshot:
            self.snapshots.append(snapshot)
        return altered

    def _state(self) -> tuple[dict[str, object], ...]:
        drive = self.drive
        fleet = {name: value for name, value in vars(drive.fleet).items() if name != "script"}
        decided = {name: vars(drive)[name] for name in _DECIDED}
        return fleet, {**drive.pipeline.memory()}, decided
