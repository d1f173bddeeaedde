"""The parallel sizes of a job, from a small YAML file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from monitor.stragglers.table import Table, TableError

_MAX_BYTES: Final = 1 << 20
_MOST: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the job's own description says; None where it says nothing."""

    name: str = ""
    dp_size: int | None = None
    pp_size: int | None = None
    tp_size: int | None = None
    vpp_size: int | None = None
    world_size: int | None = None


def read(path: Path) -> Sizes:
    """Sizes from `key: value` lines.

    Raises:
        TableError: unreadable, or a size that is no number; one line without the path.
    """
    import yaml  # noqa: PLC0415 - the monitor itself reads no YAML

    try:
        with path.open("rb") as file:
            held: Any = yaml.safe_load(file.read(_MAX_BYTES))
    except OSError as exc:
        raise TableError(exc.strerror or str(exc)) from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise TableError("holds no YAML") from exc
    if not isinstance(held, dict):
        raise TableError("expected lines such as dp_size: 4")
    return Sizes(
        name=str(held.get("trial_name", ""))[:80],
        **{name: _size(held, name) for name in _SIZES},
    )


_SIZES: Final = ("dp_size", "pp_size", "tp_size", "vpp_size", "world_size")


def _size(held: dict[Any, Any], name: str) -> int | None:
    value = held.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise TableError(f"{name} is {str(value)[:40]!r}, expected a whole number from 1")
    return value


def differences(table: Table, sizes: Sizes) -> Iterator[str]:
    """What the table lacks of the job, for people."""
    stages = len(table.stages)
    if sizes.pp_size is not None and stages != sizes.pp_size:
        yield f"rows of {stages:,} of {sizes.pp_size:,} pipeline stages"
    if sizes.dp_size is not None and sizes.pp_size is not None:
        whole = sizes.dp_size * sizes.pp_size
        if len(table.ranks) != whole:
            yield f"rows of {len(table.ranks):,} ranks, expected {whole:,} (dp_size x pp_size)"
    if sizes.world_size is not None and int(table.ranks[-1]) >= sizes.world_size:
        yield f"rank {table.ranks[-1]} is outside of a world of {sizes.world_size:,}"


def stands_for(table: Table, sizes: Sizes, rank: int) -> tuple[int, ...]:
    """Global ranks that share a row set: a rank and its tensor-parallel peers, or only itself."""
    first = int(table.ranks[rank])
    size = sizes.tp_size or 1
    if size == 1 or size > 1024 or np.any(table.ranks % size):
        return (first,)
    return tuple(range(first, first + size))
