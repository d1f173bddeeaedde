"""Torch's flight recorders of one rank: which there are, and what each said last.

Theory of operation. A backend has a recorder of its own, and torch's control plane a handler for
each: `fr_trace_json` (gloo's; since torch 2.15 every backend's by `?backend=`),
`dump_nccl_trace_json` in CUDA builds, `torchcomms_fr_trace_json`. Which there are is asked each
time, for libraries come late. They are asked one after the other, and who does not answer costs
nobody else's. A torch that does not know `?backend=` gives gloo's again: the same entries are told
once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from worker_server import wire
from worker_server.sidecar.control_plane import ControlPlaneError
from worker_server.sidecar.recorded_heads import RecordedHeads

_T = TypeVar("_T")

MAIN: Final = "fr_trace_json"
_ITS_BACKEND: Final = "gloo"
_OTHERS: Final = ("dump_nccl_trace_json", "torchcomms_fr_trace_json")
_HEADERS: Final = {"dump_nccl_trace_json": "dump_nccl_trace_json?includecollectives=false"}
"""What gives a recorder's status without its entries."""
_HEADER_DUTY: Final = 0.001
"""Share of one CPU of the rank that they may cost."""
_BACKEND: Final = re.compile(r"\w{1,32}", re.ASCII)
_BACKENDS_MOST: Final = 8


class Plane(Protocol):
    """Torch's control plane."""

    def handlers(self) -> frozenset[str]:
        """What can be asked, or ControlPlaneError."""

    def ask(self, question: str) -> dict[str, Any]:
        """A JSON object, or ControlPlaneError."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one recorder said last."""

    record: Mapping[str, Any] | None = None
    taken_s: float = 0.0
    """Monotonic; 0: never."""
    cost_s: float = 0.0
    entered: int = 0
    """Collectives that the rank had entered by then."""
    error: str | None = None
    """Why it said nothing since."""

    @property
    def age_s(self) -> float | None:
        """Since it said that; None: never."""
        return monotonic() - self.taken_s if self.taken_s else None


class Recorders:
    """Asks, and keeps what a dead rank can no longer be asked for."""

    def __init__(
        self,
        plane: Plane,
        process: Callable[[], wire.Process],
        backends: Callable[[], Iterable[str]],
    ) -> None:
        self._plane, self._process, self._backends = plane, process, backends
        self._lock = threading.Lock()
        self._one = False
        """This torch knows no `?backend=`."""
        self.kept: dict[str, Kept] = {MAIN: Kept()}
        """By the question that was asked."""
        self.heads = RecordedHeads()
        """By all but the main one: gloo's status comes with all of its entries only."""
        self._next_s = self._moved_s = 0.0

    def refresh(self, max_age_s: float, entered: int) -> None:
        """Ask those whose last answer is older; never raises."""
        with self._lock:
            due_s = monotonic() - max_age_s
            if all(one.taken_s > due_s for one in self.kept.values()):
                return
            try:
                handlers = self._asked(self._plane.handlers)
            except ControlPlaneError as exc:
                told = str(exc)
                self.kept = {name: replace(one, error=told) for name, one in self.kept.items()}
                return
            backends = () if self._one else self._backends()
            found = dict.fromkeys([MAIN, *questions(handlers, backends)])
            for question in found:
                kept = self.kept.get(question, Kept())
                if kept.taken_s <= due_s:
                    self.kept[question] = self._refreshed(question, kept, handlers, entered)
            for question in [one for one in found if self._is_mains(one)]:
                del self.kept[question]
                self._one = True

    @property
    def blind(self) -> bool:
        """Whether some heads come with all of a record's entries only."""
        return not self.kept.keys() <= {MAIN, *_HEADERS}

    def look(self, moved_s: float) -> None:
        """Read the heads again that are cheap; called once a second, never raises.

        `moved_s`: when the rank's own threads moved last.
        """
        self._moved_s = moved_s
        with self._lock:
            started_s = monotonic()
            if started_s < self._next_s:
                return
            with suppress(ControlPlaneError):
                for question in self.kept.keys() & _HEADERS.keys():
                    header = self._asked(partial(self._plane.ask, _HEADERS[question]))
                    self.heads.take(question, header, monotonic(), moved_s)
            self._next_s = monotonic() + (monotonic() - started_s) / _HEADER_DUTY

    def _refreshed(self, question: str, kept: Kept, handlers: frozenset[str], entered: int) -> Kept:
        if question.partition("?")[0] not in handlers:
            return replace(kept, error=f"this torch has no {question}")
        started_s = monotonic()
        try:
            record = self._asked(lambda: self._plane.ask(question))
        except ControlPlaneError as exc:
            return replace(kept, error=str(exc))
        done_s = monotonic()
        if question != MAIN:
            self.heads.take(question, record, done_s, self._moved_s)
        return Kept(record, done_s, done_s - started_s, entered)

    def wait_counters(self) -> dict[str, Any]:
        """Torch's wait counters, from the rank itself.

        Raises:
            ControlPlaneError: they cannot be had.
        """
        return self._asked(lambda: self._plane.ask("wait_counter_values"))

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """The answer of a rank that can give one."""
        process = self._process()
        if not process.alive:
            raise ControlPlaneError("the rank is dead")
        if process.state == "T":
            raise ControlPlaneError("the rank is stopped (state T): it was not asked")
        return ask()

    def _is_mains(self, question: str) -> bool:
        """Whether a torch that knows no `?backend=` gave the main record again."""
        if not question.startswith(f"{MAIN}?"):
            return False
        mine, main = (_marks(self.kept[name].record) for name in (question, MAIN))
        return not mine.isdisjoint(main)


def questions(handlers: Iterable[str], backends: Iterable[str]) -> Iterator[str]:
    """What to ask a control plane with these handlers for every record that it has."""
    if MAIN in handlers:
        names = [name for name in backends if _BACKEND.fullmatch(name) and name != _ITS_BACKEND]
        yield from (f"{MAIN}?backend={name}" for name in names[:_BACKENDS_MOST])
    yield from (name for name in _OTHERS if name in handlers)


def _marks(record: Mapping[str, Any] | None) -> frozenset[tuple[int, int]]:
    """What no two recorders share: each counts for itself, and the clock has nanoseconds."""
    entries = record.get("entries") if record is not None else None
    rows = entries if isinstance(entries, list) else []
    marks = (
        (row.get("record_id"), row.get("time_created_ns")) for row in rows if isinstance(row, dict)
    )
    return frozenset((a, b) for a, b in marks if type(a) is int and type(b) is int)
