"""Entries of torch's own flight recorders, as far as they are understood.

They come over a socket from a library that changes: one that is odd in anything is passed on as it
came, and takes no part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from worker_server.wire import Shapes

WORLD: Final = "default_pg"
"""What torch calls the default group."""
_SAME: Final = re.compile("_|sparse|into|tensor|single|coalesced|base|oop")
_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "byte": "uint8",
}  # fmt: skip


class TorchEntry(Struct):
    """One collective, by torch's names for everything."""

    record_id: int | None = None
    profiling_name: str = ""
    time_created_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    process_group: tuple[str, ...] | None = None
    pg_id: int | None = None
    collective_seq_id: int | None = None
    input_sizes: Shapes | None = None
    output_sizes: Shapes | None = None
    input_dtypes: tuple[str, ...] | None = None
    output_dtypes: tuple[str, ...] | None = None
    state: str | None = None
    retired: bool | None = None
    is_p2p: bool | None = None
    duration_ms: float | None = None

    @property
    def call(self) -> str:
        """`all_reduce` of `gloo:all_reduce`, `send` of `nccl:send 0->1`."""
        return self.profiling_name.rpartition(":")[2].partition(" ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the process group; TorchFT's are nameless."""
        return tuple(filter(None, self.process_group or ()))

    @property
    def dtype(self) -> str | None:
        """Of the first tensor, as torch's Python calls it."""
        first = next(iter(self.input_dtypes or self.output_dtypes or ()), None)
        name = None if first is None else first.rpartition(".")[2].lower()
        return None if name is None else _DTYPES.get(name, name)

    @property
    def over(self) -> bool:
        """Whether torch knows it to be over."""
        return self.retired is True or self.state == "completed"


def kind_of(call: str) -> str:
    """One for all that torch may call a collective: `_allgather_base`, `all_gather_single` ..."""
    return _SAME.sub("", call.lower())


def read(record: Mapping[str, Any] | None) -> Iterator[tuple[Any, TorchEntry | None]]:
    """Each entry as it came, and what it says; None: it is odd."""
    entries = record.get("entries") if isinstance(record, Mapping) else None
    for entry in entries if isinstance(entries, list | tuple) else ():
        try:
            yield entry, convert(entry, TorchEntry)
        except ValidationError:
            yield entry, None


def numbered(entries: Iterable[tuple[Any, TorchEntry | None]]) -> Iterator[tuple[int, TorchEntry]]:
    """Those that are understood and have a number of their own."""
    for _, entry in entries:
        if entry is not None and entry.record_id is not None:
            yield entry.record_id, entry
