"""What a witness of a host is: it looks at one source, and remembers what was bad."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from pathlib import Path

from msgspec import structs

from lightkeeper.worker_server.sidecar.machine import ROWS_MOST, weight_and_age
from lightkeeper.worker_server.wire import Testimony, Weight

_PAUSE_S = 60.0
"""After a longer one it is bad from then on."""


class CannotReadError(Exception):
    """The witness cannot read its source; the text says why."""


class MachineWitness:
    """Looks at one source of a host, in a thread of its own; never at another witness's."""

    name = ""
    every_s = 5.0
    """Between two looks."""
    kept_s = 86_400.0, 600.0
    """For how long what was bad is said: what is broken, and the rest, which has been judged by
    then."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: above `proc`, `sys` and `dev`."""
        self.root = root
        self.now_s = self.span_s = 0.0
        self.ranks: Collection[int] = ()
        self._values: dict[Hashable, int] = {}
        self._steady: dict[Hashable, tuple[object, float]] = {}
        self._rows: dict[tuple[str, str, str], tuple[float, float, Testimony]] = {}
        """Since when, until when."""

    def look(self, ranks: Collection[int], now_s: float) -> list[Testimony]:
        """All that is bad now or was bad lately, weightiest first.

        Args:
            ranks: PIDs of the host's ranks.
            now_s: Monotonic seconds.

        Raises:
            CannotReadError: its source cannot be read.
        """
        self.ranks, self.span_s, self.now_s = ranks, now_s - self.now_s, now_s
        try:
            self._read()
        except OSError as exc:
            raise CannotReadError(f"{exc.filename or self.name}: {exc.strerror or exc}") from exc
        return self.said(now_s)

    def said(self, now_s: float) -> list[Testimony]:
        """What is bad, without a look; forgets what is old or too much."""
        rows = {
            key: structs.replace(row, age_s=max(0, now_s - last_s), for_s=max(0, now_s - first_s))
            for key, (first_s, last_s, row) in self._rows.items()
            if now_s - last_s <= self.kept_s[row.weight is not Weight.BROKEN]
        }
        keys = sorted(rows, key=lambda key: weight_and_age(rows[key]))[:ROWS_MOST]
        self._rows = {key: self._rows[key] for key in keys}
        return [rows[key] for key in keys]

    def _read(self) -> None:
        """Read the source, and call `saw` for all that is bad.

        Raises:
            CannotReadError, OSError: the source cannot be read.
        """
        raise NotImplementedError

    def rose(self, key: Hashable, value: int | None) -> int:
        """By how much a counter rose since the last look; 0 at the first and after a reset."""
        before = self._values.get(key, value)
        if value is None or before is None:
            return 0
        self._values[key] = value
        return max(0, value - before)

    def unchanged_s(self, key: Hashable, value: object) -> float:
        """For how long every look gave this value; 0 for None and False."""
        before, since_s = self._steady.get(key, (None, self.now_s))
        if value is None or value is False or value != before:
            since_s = self.now_s
        self._steady[key] = value, since_s
        return self.now_s - since_s

    def saw(
        self, weight: Weight, code: str, text: str, *, device: str = "", about: str = "",
        pids: Iterable[int] = (), times: int = 0, for_s: float = 0.0, at_s: float | None = None,
    ) -> None:  # fmt: skip
        """It is bad now or at `at_s`, for at least `for_s` seconds; or it happened `times` times
        since the last look. A state counts once, until it has been well. `about` names what it
        concerns where that is no device.
        """
        at_s = self.now_s if at_s is None else at_s
        key, first_s, count = (code, device, about), at_s - for_s, times or 1
        if (old := self._rows.get(key)) is not None:
            goes_on = at_s - old[1] <= _PAUSE_S
            first_s = old[0] if goes_on else first_s
            count = old[2].count + (times if goes_on else count)
        text = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
        row = Testimony(
            self.name, weight, code[:32], text[:200], device=device[:32],
            pids=tuple(sorted(set(pids)))[:8], count=count,
        )  # fmt: skip
        self._rows[key] = first_s, at_s, row
