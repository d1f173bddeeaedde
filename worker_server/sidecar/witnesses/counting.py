"""What all witnesses of counters do: read a file, see how far a number rose, keep what was bad."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from lightkeeper.worker_server.sidecar.cgroups import Level, levels
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Testimony, Weight

_LATELY_S: Final = 600.0
"""What was bad longer ago is forgotten: what it harmed has been judged by then."""
_BROKEN_S: Final = 86_400.0
_PAUSE_S: Final = 60.0
"""After a longer one it is bad from then on."""


class Counting:
    """A witness with a memory: earlier values of its counters, and what was bad when."""

    name = ""
    every_s = 5.0
    deadline_s = 5.0

    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: above `proc`, `sys` and `dev`."""
        self.root = root
        self.now_s = self.span_s = 0.0
        self.ranks: Collection[int] = ()
        self._values: dict[Hashable, int] = {}
        self._steady: dict[Hashable, tuple[object, float]] = {}
        self._rows: dict[tuple[str, str, str], tuple[float, float, Testimony]] = {}
        """Since when, until when."""

    def look(self, ranks: Collection[int], now_s: float) -> Sequence[Testimony]:
        self.ranks, self.span_s, self.now_s = ranks, now_s - self.now_s, now_s
        try:
            self._read()
        except OSError as exc:
            raise CannotReadError(f"{exc.filename or self.name}: {exc.strerror or exc}") from exc
        for key, (_, last_s, row) in list(self._rows.items()):
            if now_s - last_s > (_BROKEN_S if row.weight is Weight.BROKEN else _LATELY_S):
                del self._rows[key]
        order = list(Weight)
        rows = (
            structs.replace(row, age_s=now_s - last_s, for_s=now_s - first_s)
            for first_s, last_s, row in self._rows.values()
        )
        return sorted(rows, key=lambda row: (order.index(row.weight), row.age_s))

    def levels(self, pid: int, controller: str = "") -> tuple[Level, ...]:
        """Of a process, see `cgroups.levels`; raises OSError where its file cannot be read."""
        lines = needed(self.root / f"proc/{pid}/cgroup")
        return levels(self.root / "sys/fs/cgroup", lines, controller)

    def _read(self) -> None:
        """Read the source, and call `saw` for all that is bad.

        Raises:
            CannotReadError, OSError: the source cannot be read.
        """
        raise NotImplementedError

    def rose(self, key: Hashable, value: int | None) -> int:
        """By how much a counter rose since the last look: 0 at the first one, after somebody set it
        back, and without a value.
        """
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
        pids: Iterable[int] = (), times: int = 0, for_s: float = 0.0,
    ) -> None:  # fmt: skip
        """It is bad now, for at least `for_s` seconds; or it happened `times` times since the last
        look. A state counts once, until it has been well. `about` names what it concerns where that
        is no device.
        """
        key, first_s, count = (code, device, about), self.now_s - for_s, times or 1
        if (old := self._rows.get(key)) is not None:
            goes_on = self.now_s - old[1] <= _PAUSE_S
            first_s = old[0] if goes_on else first_s
            count = old[2].count + (times if goes_on else count)
        row = Testimony(
            self.name, weight, code, text[:200], device=device[:32],
            pids=tuple(sorted(set(pids)))[:8], count=count,
        )  # fmt: skip
        self._rows[key] = first_s, self.now_s, row


class Gpus(Counting):
    """A witness that asks a vendor's library, which may not know, fail or hang."""

    every_s = 10.0
    deadline_s = 15.0
    library: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.why = "there is no GPU"
        self.codes = set[int]()
        """Of its errors."""
        self._users: dict[int, tuple[list[int], bool]] = {}
        """GPU -> its processes, and whether a rank is among them: a lost one cannot be asked."""

    def open(self, module: str, init: str) -> None:
        """Import the library and start it, once.

        Raises:
            CannotReadError: it is not there, or does not start.
        """
        if self.library is None:
            try:
                library = importlib.import_module(module)
                getattr(library, init)()
            except Exception as exc:  # without what it needs, amdsmi's import raises KeyError
                raise CannotReadError(f"{module}: {str(exc) or type(exc).__name__}") from exc
            self.library = library

    def ask(self, call: str, *arguments: Any) -> Any:
        """The library's answer; None: not known, see `why`."""
        try:
            return getattr(self.library, call)(*arguments)
        except Exception as exc:  # noqa: BLE001  its own errors, and whatever its parsing raises
            self.why = f"{call}: {str(exc) or type(exc).__name__}"[:200]
            self.codes.add(getattr(exc, "value", 0))
            return None

    def used_by(self, gpu: int, pids: Collection[int]) -> None:
        """Remember who uses a GPU, unless nobody seems to."""
        if pids:
            own = [pid for pid in pids if pid in self.ranks]
            self._users[gpu] = own or list(pids), bool(own)

    def bad(self, gpu: int, weight: Weight, code: str, text: str, **more: Any) -> None:
        """A GPU is bad; if only others use it, that is context."""
        pids, ours = self._users.get(gpu, ([], True))
        name, weight = f"GPU {gpu}", weight if ours else Weight.CONTEXT
        self.saw(weight, code, f"{name}: {text}", device=name, pids=pids, **more)

    def rising(self, gpu: int, key: Hashable, value: Any, rule: tuple[Weight, str, str]) -> None:
        """A counter of a GPU that is bad when it rises; what is no number is not known."""
        if times := self.rose((gpu, key), value if isinstance(value, int) else None):
            weight, code, text = rule
            self.bad(gpu, weight, code, f"{text} ({times})", times=times)


def text_of(path: Path) -> str | None:
    """A file's content without blanks around; None: it is not there, or cannot be read."""
    try:
        return needed(path)
    except OSError:
        return None


def needed(path: Path) -> str:
    """The same of a file without which a witness is blind; raises OSError."""
    return path.read_text("utf-8", "replace").strip()


def number(path: Path) -> int | None:
    """A file's number; None: there is none, as in `max` or `N/A`."""
    try:
        return int(path.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None


def table(path: Path) -> dict[str, int]:
    """The lines `NAME NUMBER` of a file; empty if it cannot be read."""
    rows = (line.split() for line in (text_of(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
