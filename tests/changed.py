"""`dataclasses.replace`, of msgspec structs as well: what travels is one or the other."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")


def replace(value: T, /, **changes: Any) -> T:
    """A copy with these fields changed."""
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
