"""Torch's record within a WorkerServer's answer, told in the ring's groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from monitor.flight_recorder import dump
from monitor.flight_recorder.job import NONE, State
from monitor.flight_recorder.ring_types import GroupKey, Row


def rows(
    found: dump.Dump, groups: Sequence[GroupKey], owners: Mapping[int, Row]
) -> tuple[Row, ...]:
    """Torch's rows in the ring's groups, with what only the ring knows of them."""
    columns = {name: column.tolist() for name, column in found.columns.items()}
    found_rows = []
    for at, record in enumerate(columns["record"]):
        own, site = owners.get(record), columns["site"][at]
        payload = found.payloads[columns["payload"][at]]
        if own is not None:
            payload = replace(payload, reduce_op=own.payload.reduce_op, root=own.payload.root)
        state = State(columns["state"][at])
        if own is not None and (own.state is State.FAILED or state is State.UNKNOWN):
            state = own.state
        found_rows.append(
            Row(
                group=groups[columns["group"][at]],
                seq=columns["seq"][at],
                payload=payload,
                state=state,
                op_id=columns["op_id"][at],
                record=record,
                site=own.site if own is not None else found.sites[site] if site != NONE else None,
                p2p=columns["p2p"][at],
                peer=_place(columns["peer"][at], found, columns["group"][at]),
                created_ns=columns["created_ns"][at],
                started_ns=columns["started_ns"][at],
                completed_ns=columns["completed_ns"][at],
                torch_ids=(record,),
            )
        )
    return tuple(found_rows)


def _place(peer: int, found: dump.Dump, group: int) -> int:
    """A rank of the group as one of the replica group."""
    members = found.groups[group].members
    return members[peer] if peer != NONE and peer < len(members) else NONE


def homes(
    found: dump.Dump, ring: Sequence[Row], places: Mapping[str, tuple[int, ...]]
) -> tuple[GroupKey, ...]:
    """For each group of torch's the ring's: the one that most of its matched entries are in.

    One without matches is the ring's of the same name, else a group that only torch knows.
    """
    owners = owners_of(ring)
    votes: dict[int, Counter[GroupKey]] = {}
    pairs = (found.columns[name].tolist() for name in ("record", "group"))
    for record, index in zip(*pairs, strict=True):
        if record in owners:
            votes.setdefault(index, Counter())[owners[record].group] += 1
    named = {row.group.name: row.group for row in ring if not row.group.across}
    keys = []
    for index, group in enumerate(found.groups):
        world = group.desc == "default_pg"
        name = "default" if world else group.desc or group.name or f"unnamed {group.pg_id}"
        if index in votes:
            keys.append(max(votes[index].items(), key=lambda vote: (vote[1], vote[0].name))[0])
        elif name in named and group.age == 0:
            keys.append(named[name])
        else:
            members = group.members or places.get(name, ())
            keys.append(GroupKey(name, tuple(members), group.generation, group.age))
    return tuple(keys)


def apart(
    homes: Sequence[tuple[GroupKey, ...]], dumps: Sequence[dump.Dump]
) -> list[tuple[GroupKey, ...]]:
    """Groups that several backends serve, each with a count of its own, as one for each."""
    taken: set[GroupKey] = set()
    told = []
    for keys, found in zip(homes, dumps, strict=True):
        plain = [key._replace(places=()) for key in keys]
        kept = (
            key._replace(name=f"{key.name}.{found.backend.name.lower()}") if of in taken else key
            for key, of in zip(keys, plain, strict=True)
        )
        told.append(tuple(kept))
        taken.update(plain)
    return told


def owners_of(ring: Iterable[Row]) -> dict[int, Row]:
    """Torch's record id -> the ring's row that it belongs to."""
    return {number: row for row in ring for number in row.torch_ids}
