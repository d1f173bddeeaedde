"""Hears all witnesses, each in a thread of its own, and writes what they say to one file."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from msgspec import convert, structs, to_builtins

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.sidecar.machine import FILE, MAX_BYTES, weightiest
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, Witness

EVERY: Final[Mapping[str, str]] = {
    "kernel log": "kernel_log:KernelLog",
}
"""Name -> module of this package and what makes the witness. Imported in its own thread."""
TESTIMONIES_MOST: Final = 256
_WRITE_S: Final = 2.0
_SOON_S: Final = 0.25
"""News is written after so long."""
_KEPT_S: Final = 3600.0
"""What a witness said that can no longer read is kept for so long."""
_CHILD_KEPT_S: Final = 120.0
_CHILDREN_MOST: Final = 4096
_State = Literal["fine", "bad", "cannot be read"]


def made(source: str) -> Witness:
    """The witness made by `MODULE:NAME` of this package."""
    module, _, name = source.partition(":")
    witness: Witness = getattr(importlib.import_module(f"{__package__}.{module}"), name)()
    return witness


class Seat:
    """One witness in its thread, and what it said last."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Witness],
        ranks: Callable[[], Collection[int]],
        news: threading.Event,
    ) -> None:
        self._name, self._make, self._ranks, self._news = name, make, ranks, news
        self._lock = threading.Lock()
        self._asked_s: float | None = time.monotonic()
        """Since when it is waited for; None: it has answered."""
        self._deadline_s = 30.0  # to be made
        self._said: list[wire.Testimony] = []
        self._said_s = 0.0
        self._why = "it has not looked yet"
        self._cost_s = 0.0
        self._state, self._since_s = "", time.monotonic()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            witness = self._make()
            self._deadline_s = witness.deadline_s
        except Exception as exc:  # noqa: BLE001  any problem is this witness's alone
            self._answer([], f"it cannot start: {exc!r}", 0.0)
            return
        while True:
            self._look(witness)
            time.sleep(max(0.1, witness.every_s))

    def _look(self, witness: Witness) -> None:
        began_s, rows, why = time.thread_time(), list[wire.Testimony](), ""
        with self._lock:
            self._asked_s = now_s = time.monotonic()
        try:
            said = islice(witness.look(self._ranks(), now_s), TESTIMONIES_MOST)
            rows = [*map(bounded, said)]
        except CannotReadError as exc:
            why = str(exc) or "it does not say why"
        except Exception as exc:  # noqa: BLE001
            why = f"it failed: {exc!r}"
        self._answer(rows, why, time.thread_time() - began_s)

    def _answer(self, rows: list[wire.Testimony], why: str, cost_s: float) -> None:
        with self._lock:
            known = {(row.code, row.text, row.count) for row in self._said}
            if not why:
                self._said, self._said_s = rows, time.monotonic()
            self._why, self._cost_s, self._asked_s = why, cost_s, None
        if any((row.code, row.text, row.count) not in known for row in rows):
            self._news.set()

    def hear(self, now_s: float) -> tuple[wire.WitnessState, list[wire.Testimony]]:
        """Its state, and what it says; at once."""
        with self._lock:
            late_s = 0.0 if self._asked_s is None else now_s - self._asked_s
            why = self._why
            if late_s > self._deadline_s:
                why = f"no answer for {late_s:.0f} s"
            past_s = max(0.0, now_s - self._said_s)
            rows = [row.later(past_s) for row in self._said]
        rows = [row for row in rows if not why or row.age_s < _KEPT_S]
        bad = any(row.weight is not wire.Weight.CONTEXT for row in rows)
        state: _State = "cannot be read" if why else "bad" if bad else "fine"
        if state != self._state:
            self._state, self._since_s = state, now_s
        since_s = max(0.0, now_s - self._since_s)
        return wire.WitnessState(self._name, state, why[:200], since_s, self._cost_s), rows


def bounded(row: wire.Testimony) -> wire.Testimony:
    """The same within the bounds of the wire, its text printable.

    Raises:
        ValidationError: it is none.
    """
    text = "".join(char if char.isprintable() else "?" for char in " ".join(row.text.split()))
    cut = structs.replace(
        row, witness=row.witness[:32], code=row.code[:32], text=text[:200], device=row.device[:32],
        pids=tuple(row.pids)[:8], age_s=max(0.0, row.age_s), for_s=max(0.0, row.for_s),
    )  # fmt: skip
    return convert(to_builtins(cut), wire.Testimony)


class Families:
    """The ranks of a run directory and what they started. A killed child is no longer in /proc, so
    it is known for two minutes more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ranks: frozenset[int] = frozenset()
        self._seen: dict[int, tuple[int, float]] = {}
        """Child -> its rank, and when it was last seen."""

    def look(self, now_s: float) -> None:
        """Find the ranks and their children anew."""
        self.ranks = frozenset(run_dir.processes(self._folder, ("pid",)))
        for rank in self.ranks:
            for child in _children(rank):
                self._seen.pop(child, None)  # the latest stand last
                self._seen[child] = rank, now_s
        kept = {child: at for child, at in self._seen.items() if now_s - at[1] < _CHILD_KEPT_S}
        self._seen = dict([*kept.items()][-_CHILDREN_MOST:])

    def of(self, row: wire.Testimony) -> wire.Testimony:
        """The testimony; of a rank's child, it concerns the rank, too."""
        ranks = {self._seen[pid][0] for pid in row.pids if pid in self._seen} - {*row.pids}
        return structs.replace(row, pids=(*row.pids, *sorted(ranks))[:8]) if ranks else row


def _children(pid: int) -> list[int]:
    family = [pid]
    for each in family:  # which grows meanwhile
        try:
            words = Path(f"/proc/{each}/task/{each}/children").read_text("ascii").split()
            family += map(int, words)
        except (OSError, ValueError):
            continue
        del family[64:]
    return family[1:]


def write(path: Path, states: Sequence[wire.WitnessState], rows: list[wire.Testimony]) -> None:
    """Write the file, with as many rows as it may have.

    Raises:
        OSError: it cannot be written.
    """
    rows = weightiest(rows)[:TESTIMONIES_MOST]
    while True:
        report = wire.MachineReport(wire.Host(""), 0.0, tuple(states), tuple(rows))
        content = {"written_s": time.monotonic(), "report": wire.to_json(report)}
        if len(json.dumps(content)) < MAX_BYTES or not rows:
            break
        rows = rows[: len(rows) // 2]
    run_dir.write_json(path, content)


def sit(folder: Path, every: Mapping[str, str] = EVERY) -> None:
    """Write what the witnesses say, to the end of this process."""
    families, news = Families(folder), threading.Event()
    seats = [
        Seat(name, partial(made, source), lambda: families.ranks, news)
        for name, source in every.items()
    ]
    while True:
        now_s = time.monotonic()
        families.look(now_s)
        heard = [seat.hear(now_s) for seat in seats]
        with contextlib.suppress(OSError):  # no room: the sidecars see that the file is old
            rows = [families.of(row) for _, said in heard for row in said]
            write(folder / FILE, [state for state, _ in heard], rows)
        news.wait(_WRITE_S)
        time.sleep(_SOON_S)
        news.clear()
