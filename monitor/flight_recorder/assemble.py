"""The dumps of several ranks, made into one job.

Theory of operation. What a rank calls its groups is matched with what its peers call theirs: by
name and members, because pg_ids and record ids count within a process and names may be used twice
(each replica group of TorchFT's has a group "0" of its own). A rank that does not know the
members takes the one group of that name that has it; where there is none, the group is inferred
from the ranks that have entries in it. The result depends on the records alone, not on the order
in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder import one_count
from monitor.flight_recorder.dump import Dump
from monitor.flight_recorder.groups import LocalGroup
from monitor.flight_recorder.job import (
    COLUMNS,
    NONE,
    Group,
    Job,
    Payload,
    Problem,
    RankInfo,
)

_WORLD: Final = "default_pg"
"""Torch's description of the group that all ranks of a job are in."""


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's dump and where it comes from."""

    rank: int
    dump: Dump
    path: str = ""


class _Key(NamedTuple):
    """What makes one group of the job."""

    name: str
    members: tuple[int, ...]
    """Empty when nobody knows them."""
    age: int
    generation: int | None
    inferred: bool = False
    """Whether there may be more members."""
    owner: int = NONE
    """The one rank that knows it, where it cannot be matched with anything of its peers'."""


def assemble(
    records: Iterable[Record],
    *,
    world_size: int | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    problems: Iterable[Problem] = (),
    gaps: Iterable[int] = (),
) -> Job:
    """The job of these records, at most one of a rank.

    `members` names the global ranks of groups, by name or description, where the records do not;
    `gaps` ranks that the records' numbers leave out.
    """
    ordered = sorted(records, key=lambda record: record.rank)
    dumps, uncounted = one_count.by_group([record.dump for record in ordered])
    ordered = [replace(r, dump=known) for r, known in zip(ordered, dumps, strict=True)]
    shifted = _global_members(ordered)
    found = [*problems, *_unplaced(ordered)]
    found += [] if uncounted is None else [Problem(ordered[0].path, uncounted)]
    known = {one.rank for one in found if one.rank is not None}
    known.update(record.rank for record in ordered)
    told = {rank for listed in shifted for members in set(listed) for rank in members}
    told |= known.union(range(world_size or 0))
    expected = tuple(sorted(told.union(gaps)))
    keys = _keys(ordered, shifted, dict(members or {}), expected if world_size else ())
    table = _Groups(ordered, keys, expected)
    columns, payloads, sites = _columns(ordered, table)
    return Job(
        expected=expected,
        ranks={r.rank: _info(r, table.of[at]) for at, r in enumerate(ordered)},
        groups=table.groups,
        payloads=payloads,
        sites=sites,
        columns=columns,
        problems=tuple(sorted(found, key=lambda one: (one.path, one.reason))),
        gaps=tuple(sorted(set(gaps) - told)),
    )


def _global_members(records: Sequence[Record]) -> list[list[tuple[int, ...]]]:
    """Members of each local group of each record, as global ranks.

    Under TorchFT each replica group is a world of its own that counts its ranks from 0, while the
    file's name tells the rank in the whole job: but for the first replica group, such a world does
    not have the rank. (Torch's `transform_ft` needs the size of a replica group as an option.)
    """
    found = []
    for record in records:
        shift = _shift(record)
        found.append(
            [
                tuple(rank + shift for rank in group.members)
                if shift and record.rank not in group.members
                else group.members
                for group in record.dump.groups
            ]
        )
    return found


def _shift(record: Record) -> int:
    for group in record.dump.groups:
        size = len(group.members)
        if group.desc == _WORLD and 0 < size <= record.rank and group.members == tuple(range(size)):
            return record.rank - record.rank % size
    return 0


def _keys(
    records: Sequence[Record],
    shifted: Sequence[Sequence[tuple[int, ...]]],
    supplied: Mapping[str, Sequence[int]],
    world: tuple[int, ...],
) -> list[list[_Key]]:
    """The key of each local group of each record."""
    first = [
        [
            _key(group, members or _supplied(group, supplied, world), record.rank)
            for group, members in zip(record.dump.groups, listed, strict=True)
        ]
        for record, listed in zip(records, shifted, strict=True)
    ]
    told: dict[tuple[str, int], dict[_Key, None]] = {}
    for key in {key: None for keys in first for key in keys if key.members}:
        told.setdefault((key.name, key.age), {})[key] = None
    return [
        [_adopt(key, record.rank, told) for key in keys]
        for record, keys in zip(records, first, strict=True)
    ]


def _supplied(
    group: LocalGroup, supplied: Mapping[str, Sequence[int]], world: tuple[int, ...]
) -> tuple[int, ...]:
    for name in (group.name, group.desc):
        if name in supplied:
            return tuple(supplied[name])
    return world if group.desc == _WORLD else ()


def _key(group: LocalGroup, members: tuple[int, ...], rank: int) -> _Key:
    if members or group.name:
        return _Key(group.name, members, group.age, group.generation, group.inferred)
    # nameless, and members unknown: peers' nameless groups may be any others
    return _Key("", (), group.age, group.generation, owner=rank)


def _adopt(key: _Key, rank: int, told: Mapping[tuple[str, int], Mapping[_Key, None]]) -> _Key:
    """The group that peers with more knowledge mean by the same name, if there is just one."""
    if key.members or key.owner != NONE:
        return key
    fitting = [one for one in told.get((key.name, key.age), ()) if rank in one.members]
    return fitting[0] if len(fitting) == 1 else key


class _Groups:
    """The groups of the job, and for each record its local groups' indices."""

    def __init__(
        self, records: Sequence[Record], keys: Sequence[Sequence[_Key]], expected: Sequence[int]
    ) -> None:
        desc: dict[_Key, str] = {}
        seen: dict[_Key, list[int]] = {}
        for record, listed in zip(records, keys, strict=True):
            for group, key in zip(record.dump.groups, listed, strict=True):
                desc[key] = desc.get(key) or group.desc
                seen.setdefault(key, []).append(record.rank)
        ordered = sorted(desc, key=_order)
        index = {key: at for at, key in enumerate(ordered)}
        self.of = [[index[key] for key in listed] for listed in keys]
        self.groups = _named(
            [
                Group(
                    name=key.name,
                    desc=desc[key],
                    members=key.members or _inferred(desc[key], seen[key], expected),
                    inferred=key.inferred or not key.members,
                    generation=key.generation,
                )
                for key in ordered
            ],
            [key.owner for key in ordered],
        )


def _inferred(desc: str, seen: Sequence[int], expected: Sequence[int]) -> tuple[int, ...]:
    """The ranks that have entries; everybody is in the world."""
    return tuple(expected) if desc == _WORLD else tuple(sorted(set(seen)))


def _order(key: _Key) -> tuple[Any, ...]:
    number = int(key.name) if key.name.isdecimal() and len(key.name) < 19 else 1 << 62
    generation = NONE if key.generation is None else key.generation
    return number, key.name, -generation, key.age, key.members, key.owner


def _named(groups: Sequence[Group], owners: Sequence[int]) -> tuple[Group, ...]:
    """Names that are unique in the job; the newest of one name keeps it."""
    used: set[str] = set()
    next_number: dict[str, int] = {}
    named = []
    for group, owner in zip(groups, owners, strict=True):
        name = group.name or ("unnamed" if owner == NONE else f"unnamed of rank {owner}")
        if name in used and group.generation is not None:
            name = f"{name}@{group.generation}"
        unique = name
        while unique in used:
            next_number[name] = next_number.get(name, 1) + 1
            unique = f"{name}#{next_number[name]}"
        used.add(unique)
        named.append(replace(group, name=unique))
    return tuple(named)


def _info(record: Record, index: Sequence[int]) -> RankInfo:
    dump = record.dump
    return RankInfo(
        rank=record.rank,
        backend=dump.backend,
        version=dump.version,
        only_active=dump.only_active,
        dropped=dump.dropped,
        status={index[local]: status for local, status in sorted(dump.status.items())},
        path=record.path,
    )


def _columns(
    records: Sequence[Record], table: _Groups
) -> tuple[dict[str, NDArray[Any]], tuple[Payload, ...], tuple[str, ...]]:
    """All rows, with what was numbered in each dump numbered in the job."""
    sizes = [len(record.dump.columns["seq"]) for record in records]
    columns = {name: np.empty(sum(sizes), dtype) for name, dtype in COLUMNS.items()}
    payloads: dict[Payload, int] = {}
    sites: dict[str, int] = {}
    end = 0
    for at, (record, size) in enumerate(zip(records, sizes, strict=True)):
        dump, rows = record.dump, slice(end, end + size)
        end += size
        for name, column in dump.columns.items():
            columns[name][rows] = column
        columns["rank"][rows] = record.rank
        columns["group"][rows] = _renumbered(dump.columns["group"], table.of[at])
        columns["payload"][rows] = _renumbered(
            dump.columns["payload"], [payloads.setdefault(p, len(payloads)) for p in dump.payloads]
        )
        columns["site"][rows] = _renumbered(
            dump.columns["site"], [sites.setdefault(s, len(sites)) for s in dump.sites]
        )
        if not dump.global_peers:
            columns["peer"][rows] = _peers(columns, rows, table.groups)
    return columns, tuple(payloads), tuple(sites)


def _renumbered(column: NDArray[Any], numbers: Sequence[int]) -> NDArray[np.int32]:
    """`numbers` at the places that `column` names; NONE stays NONE."""
    renumbered: NDArray[np.int32] = np.array([*numbers, NONE], np.int32)[column]
    return renumbered


def _peers(
    columns: Mapping[str, NDArray[Any]], rows: slice, groups: Sequence[Group]
) -> NDArray[np.int32]:
    """Group ranks of peers as global ranks; unknown where the members are."""
    peers: NDArray[np.int32] = columns["peer"][rows].copy()
    if not (peers != NONE).any():
        return peers
    for index in np.unique(columns["group"][rows][peers != NONE]).tolist():
        members = () if groups[index].inferred else groups[index].members
        mine = np.flatnonzero((columns["group"][rows] == index) & (peers != NONE))
        known = peers[mine] < len(members)
        peers[mine[known]] = np.array(members, np.int32)[peers[mine[known]]]
        peers[mine[~known]] = NONE
    return peers


def _unplaced(records: Sequence[Record]) -> list[Problem]:
    lost = [record for record in records if record.dump.unplaced]
    if not lost:
        return []
    named = ", ".join(str(record.rank) for record in lost[:8])
    more = " ..." if len(lost) > 8 else ""
    return [
        Problem(
            lost[0].path,
            f"pg_status of groups without entries cannot be given to a group (ranks {named}{more})",
        )
    ]
