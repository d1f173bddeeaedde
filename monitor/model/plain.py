"""Our own records as plain JSON and back, by the annotations of their types. Pure.

What has a default may be missing, keys that are unknown are ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_plain(record: Any) -> dict[str, Any]:
    """Plain JSON types; None stays None."""
    told: dict[str, Any] = msgspec.to_builtins(record)
    return told


def from_plain(kind: type[T], body: Any) -> T:
    """Inverse of `to_plain`.

    Raises:
        ValueError: it is none; the message names the key.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc
