"""Columns that grow batch by batch, in the smallest types that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.stragglers.table import USED, WHOLE, TableError

MISSING: Final = -(2**31)
"""A whole number that a row does not have."""
_MOST_OPS: Final = 10_000
_TYPES: Final = {"step": "i8", "optype": "i2"}


@dataclass(slots=True)
class Columns:
    """What was read so far."""

    ops: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    _parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """A batch of one column, numbers; NaN where a row has none."""
        if name in WHOLE and values.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                inside = np.abs(values) < 2.0**62
                values = np.where(inside, np.rint(values), MISSING).astype(np.int64)
        kind = _TYPES.get(name, "i4" if name in WHOLE else "f8")
        if name in WHOLE and len(values):
            # Out of range is taken for missing: no job has 2**31 ranks or microbatches.
            outside = (values < MISSING) | (values > (2**31 - 1 if kind == "i4" else 2**62))
            values = np.where(outside, MISSING, values) if outside.any() else values
        self._parts.setdefault(name, []).append(values.astype(kind, copy=False))

    def add_ops(self, names: Iterable[str | None]) -> NDArray[np.int16]:
        """Codes of the names of operations; -1 for none.

        Raises:
            TableError: thousands of different names are no types of operations.
        """
        codes = []
        for name in names:
            code = -1 if not name else self.ops.setdefault(name, len(self.ops))
            codes.append(code)
        if len(self.ops) > _MOST_OPS:
            raise TableError(f"more than {_MOST_OPS:,} types of operations in column optype")
        return np.array(codes, dtype=np.int16)

    def whole(self) -> tuple[dict[str, NDArray[Any]], list[str]]:
        """All batches of each column as one array; the batches go. Operations sorted by name."""
        found = {}
        for name in sorted(self._parts):
            found[name] = np.concatenate(self._parts.pop(name))
        names = sorted(self.ops)
        if "optype" in found and names:
            place = np.full(len(names) + 1, -1, dtype=np.int16)  # the last is for -1
            for code, name in enumerate(names):
                place[self.ops[name]] = code
            found["optype"] = place[found["optype"]]
        return found, names


def wanted(there: Iterable[str]) -> list[str]:
    """Columns to read, of those that there are."""
    names = set(there)
    return [name for name in USED if name in names]
