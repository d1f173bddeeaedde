"""Process groups as one rank's dump tells of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from monitor.flight_recorder.entries import GroupKey
from monitor.flight_recorder.job import NONE, Status
from monitor.flight_recorder.record import FlightRecordError

_LONGEST_LIST: Final = 16 << 20
_QUORUM: Final = re.compile(r"torchft_quorum_(\d{1,18})_rank_\d+$")
"""TorchFT's name for the group of one quorum (torchft/process_group.py)."""
_STATUS: Final = (
    "last_enqueued_collective", "last_started_collective", "last_completed_collective",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """One process group in one dump."""

    name: str
    """Empty where torch has none."""
    desc: str = ""
    members: tuple[int, ...] = ()
    """As recorded, in order of group ranks; empty when they are not."""
    pg_id: int = NONE
    """Counts the groups of that process; NONE when no entry tells it."""
    age: int = 0
    """How many newer groups of the same name the dump has."""
    generation: int | None = None
    """TorchFT's quorum id, where it can be told."""
    inferred: bool = False
    """Whether there may be more members than these."""


def of_generation(group: LocalGroup, generation: int) -> LocalGroup:
    """The same, where it tells no quorum of its own and is one that TorchFT makes anew."""
    if group.generation is not None or group.name:
        return group
    return replace(group, generation=generation)


def from_entries(keys: Sequence[GroupKey], config: Any) -> tuple[LocalGroup, ...]:
    """The groups of the entries, in their order, and after them those without any."""
    configured = _config(config)
    found = []
    for name, desc, pg_id in keys:
        told = configured.get(name, _Config())
        found.append(_group(name, desc or told.desc, told.members, pg_id))
    named = {name for name, _, _ in keys}
    idle = [
        _group(name, told.desc, told.members, NONE)
        for name, told in configured.items()
        if name not in named and (name or told.members)
    ]
    return _with_ages([*found, *idle])


def _group(name: str, desc: str, members: tuple[int, ...], pg_id: int) -> LocalGroup:
    quorum = _QUORUM.match(name)
    return LocalGroup(
        name, desc, members, pg_id, generation=None if quorum is None else int(quorum[1])
    )


def _with_ages(found: Sequence[LocalGroup]) -> tuple[LocalGroup, ...]:
    """A name may come again in a process (destroyed and made anew): the newest has age 0."""
    ids: dict[str, list[int]] = {}
    for group in found:
        ids.setdefault(group.name, []).append(group.pg_id)
    for listed in ids.values():
        listed.sort(reverse=True)
    return tuple(replace(group, age=ids[group.name].index(group.pg_id)) for group in found)


@dataclass(frozen=True, slots=True)
class _Config:
    desc: str = ""
    members: tuple[int, ...] = ()


def _config(config: Any) -> dict[str, _Config]:
    """`pg_config`: name -> description and members."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise FlightRecordError(f"pg_config is an object, not a {type(config).__name__}")
    found = {}
    for name, told in config.items():
        if not isinstance(name, str) or not isinstance(told, Mapping):
            raise FlightRecordError("pg_config names groups and describes them")
        desc = told.get("desc")
        desc = desc if isinstance(desc, str) and desc != "undefined" else ""
        found[name] = _Config(desc, _ranks(told.get("ranks")))
    return found


def _ranks(ranks: Any) -> tuple[int, ...]:
    if isinstance(ranks, str):
        return _listed(ranks)
    if isinstance(ranks, list | tuple) and all(type(rank) is int for rank in ranks):
        return tuple(ranks)
    return ()


@lru_cache(1024)
def _listed(text: str) -> tuple[int, ...]:
    """Ranks in a text such as `[0, 1]`; what is none of that is unknown, not an error."""
    if len(text) > _LONGEST_LIST or not text.startswith("["):
        return ()
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in ranks):
        return ()
    return tuple(dict.fromkeys(ranks))


def statuses(status: Any) -> dict[int, Status]:
    """`pg_status`: pg_id -> where that group is; JSON writes its numbers as texts."""
    if status is None:
        return {}
    if not isinstance(status, Mapping):
        raise FlightRecordError(f"pg_status is an object, not a {type(status).__name__}")
    return {
        int(pg_id): Status(*(_number(told.get(key, NONE)) for key in _STATUS))
        for pg_id, told in status.items()
    }


def _number(value: Any) -> int:
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise FlightRecordError("a sequence id of more than 64 bits")
    return number


def place(
    seen: tuple[LocalGroup, ...], status: Mapping[int, Status]
) -> tuple[tuple[LocalGroup, ...], dict[int, Status], int]:
    """Groups with what is known of their `pg_id`, statuses by group, and how many have none.

    `pg_status` knows groups by pg_id and `pg_config` by name; entries have both. For a group
    without entries both count upwards in the order in which the process made its groups, if torch
    numbered its name, and whoever has a status has been configured (NCCL's communicator is made
    before its first entry). So between two groups that entries tell, as many names as pg_ids
    belong to each other in order; where the numbers differ nobody can tell, and nothing is said.
    """
    by_id = {group.pg_id: index for index, group in enumerate(seen) if group.pg_id != NONE}
    waiting = sorted(pg_id for pg_id in status if pg_id not in by_id)
    idle = [index for index, group in enumerate(seen) if group.pg_id == NONE]
    guessed = _in_order(seen, by_id, waiting, idle)
    changed = list(seen)
    for pg_id, index in guessed.items():
        changed[index] = replace(changed[index], pg_id=pg_id)
    by_id |= guessed
    placed = {by_id[pg_id]: one for pg_id, one in status.items() if pg_id in by_id}
    return tuple(changed), placed, len(status) - len(placed)


def _in_order(
    seen: Sequence[LocalGroup], by_id: Mapping[int, int], waiting: list[int], idle: list[int]
) -> dict[int, int]:
    if len(waiting) == len(idle) == 1:
        return {waiting[0]: idle[0]}
    if len(waiting) > len(idle):  # somebody has a status and is not configured
        return {}
    names = [group.name for group in seen]
    if len(set(names)) < len(names) or not all(name.isdecimal() for name in names):
        return {}
    known = sorted((pg_id, int(names[index])) for pg_id, index in by_id.items())
    if any(a[1] >= b[1] for a, b in pairwise(known)):
        return {}
    bounds = [(-1, -1), *known, (1 << 62, 1 << 62)]
    found: dict[int, int] = {}
    for (low_id, low), (high_id, high) in pairwise(bounds):
        ids = [pg_id for pg_id in waiting if low_id < pg_id < high_id]
        between = [index for index in idle if low < int(names[index]) < high]
        if len(ids) == len(between):
            between.sort(key=lambda index: int(names[index]))
            found.update(zip(ids, between, strict=True))
    return found
