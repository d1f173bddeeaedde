"""Our own records to plain JSON and back, by the annotations of their types. Pure.

Fields with a default may be missing; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Unix time, within 30,000 years of the epoch: a damaged store holds anything."""
_READABLE: set[type] = set()


def readable(kind: type[T]) -> type[T]:
    """Mark a class that `from_plain` reads, above its `@dataclass`.

    msgspec learns a dataclass at its first use, and two threads that do so at once crash the
    interpreter (0.22.0). Modules are imported in one thread at a time: it is learned there.
    """
    msgspec.json.Decoder(kind)
    _READABLE.add(kind)
    return kind


def to_plain(record: Any) -> dict[str, Any]:
    """Plain JSON types; None stays None."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain


def from_plain(kind: type[T], body: Any) -> T:
    """Inverse of `to_plain`.

    Raises:
        ValueError: it does not fit; the message names the key.
        TypeError: the class is not `readable`.
    """
    if kind not in _READABLE:
        raise TypeError(f"{kind.__name__} is read from JSON and not @readable")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc
