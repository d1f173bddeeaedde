"""WorkerServers' answers, made into one job: what the monitor and its bundles have.

Theory of operation. An answer holds the rank's ring and torch's own record. For each process group
one of the two is taken, the same on all ranks, because they count differently: torch's where it
alone has everything (NCCL; C++ that calls by itself, as DDP's reducer does; a ring that has
forgotten how many sends it counted) and every rank has it, else the ring, which knows on gloo
what torch does not: exits, errors, roots, point-to-point, TorchFT's quorums.

Ranks are called by replica group and group rank; they are numbered in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder import one_count
from monitor.flight_recorder.assemble import Record, assemble
from monitor.flight_recorder.dump import Dump
from monitor.flight_recorder.groups import LocalGroup
from monitor.flight_recorder.job import COLUMNS, NONE, Backend, Job, Payload, Problem, State, Status
from monitor.flight_recorder.ring_rows import is_whole
from monitor.flight_recorder.ring_types import Answer, GroupKey, Row
from monitor.names import GroupName, RankName, rank_name, split_rank_name

_AS_THEY_ARE: Final = (
    "seq", "op_id", "record", "state", "p2p", "created_ns", "started_ns", "completed_ns",
)  # fmt: skip
_WORLD: Final = "default"
"""The ring's name for a replica group's own world."""


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Global ranks of a job that has replica groups."""

    number: Mapping[tuple[str, int], int]
    alone: bool
    """Whether there is one replica group, so that names need not tell which."""
    lanes: int
    """Ranks of the largest replica group."""

    def members(self, group: str, places: Iterable[int]) -> tuple[int, ...]:
        """Global ranks of a replica group's ranks; empty when one of them is none."""
        found = [self.number.get((group, place), NONE) for place in places]
        return () if NONE in found else tuple(found)


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the rows of one rank repeat."""

    groups: tuple[GroupKey, ...]
    payloads: tuple[Payload, ...]
    sites: tuple[str, ...]


def from_answers(
    answers: Iterable[Answer],
    *,
    expected: Iterable[RankName] = (),
    lost: Mapping[RankName, Problem] | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    problems: Iterable[Problem] = (),
) -> Job:
    """The job of these answers, at most one of a rank; see `ring_rows.read`.

    `expected` names ranks that must be there, also those of replica groups that did not answer;
    `lost` those whose answer cannot be read.
    """
    known = _counted(sorted(answers, key=lambda one: _place(one.record.identity.rank)))
    lost = lost or {}
    ranks = _ranks(known, [*expected, *lost])
    by_torch = _groups_by_torch(known)
    quorums = _quorums(known)
    records = [_record(one, ranks, by_torch, quorums) for one in known]
    odd = [Problem(one.path, one.problem) for one in known if one.problem is not None]
    gone = [replace(lost[name], rank=ranks.number[_place(name)]) for name in lost]
    job = assemble(
        records,
        world_size=len(ranks.number),
        members=members,
        problems=[*problems, *odd, *gone],
    )
    names = {number: rank_name(*place) for place, number in ranks.number.items()}
    infos = {
        record.rank: replace(job.ranks[record.rank], alive=one.record.alive, taken_ns=one.taken_ns)
        for one, record in zip(known, records, strict=True)
    }
    hosts = {
        record.rank: str(one.record.identity.host)
        for one, record in zip(known, records, strict=True)
    }
    return replace(job, names=names, hosts=hosts, ranks=infos)


def _counted(answers: Sequence[Answer]) -> list[Answer]:
    """With the numbers that each group's calls have, whoever counted them."""
    before = [found for one in answers for found, _ in one.dumps]
    dumps, uncounted = one_count.by_group(before)
    if all(map(is_, before, dumps)):
        return list(answers)
    after = iter(dumps)
    counted = []
    for one in answers:
        mine = [next(after) for _ in one.dumps]
        columns = [(found.columns["record"].tolist(), found.columns["seq"]) for found in mine]
        seq = {n: at for known, of in columns for n, at in zip(known, of.tolist(), strict=True)}
        counted.append(
            replace(
                one,
                torch=tuple(replace(r, seq=seq[r.record]) for r in one.torch if r.record in seq),
                dumps=tuple((f, keys) for f, (_, keys) in zip(mine, one.dumps, strict=True)),
                problem="; ".join(filter(None, (one.problem, uncounted))) or None,
            )
        )
    return counted


def _place(name: RankName) -> tuple[GroupName, int]:
    return split_rank_name(name)


def _ranks(answers: Sequence[Answer], expected: Iterable[RankName]) -> _Ranks:
    places = {_place(name) for name in expected}
    for one in answers:
        identity = one.record.identity
        places.update((identity.group, place) for place in range(identity.world_size))
    number: dict[tuple[str, int], int] = {place: at for at, place in enumerate(sorted(places))}
    lanes = 1 + max((lane for _, lane in places), default=0)
    return _Ranks(number, len({group for group, _ in places}) == 1, lanes)


def _groups_by_torch(answers: Sequence[Answer]) -> frozenset[tuple[str, GroupKey]]:
    """(replica group, process group) for which torch's record is taken; "" across them."""
    ring: dict[tuple[str, GroupKey], bool] = {}
    wanted: set[tuple[str, GroupKey]] = set()
    for one in answers:
        torch = {row.group for row in one.torch}
        nccl = {key for found, keys in one.dumps for key in keys if found.backend is Backend.NCCL}
        more = {row.group for row in one.torch if row.record in one.alone}
        mixed = {row.group for row in one.ring if row.p2p}
        mixed = set() if is_whole(one.record) else mixed
        for key in {row.group for row in one.ring if not row.p2p} | torch:
            where = _where(one, key)
            ring[where] = ring.get(where, True) and key in torch
            if key in nccl or key in more or key in mixed:
                wanted.add(where)
    return frozenset(where for where in wanted if ring[where])


def _where(one: Answer, key: GroupKey) -> tuple[str, GroupKey]:
    return ("" if key.across else one.record.identity.group), key


def _quorums(answers: Sequence[Answer]) -> dict[GroupKey, set[str]]:
    """Groups that span replica groups -> the replica groups that were in them."""
    found: dict[GroupKey, set[str]] = {}
    for one in answers:
        for row in (*one.ring, *one.torch):
            if row.group.across:
                found.setdefault(row.group, set()).add(one.record.identity.group)
    return found


def _record(
    one: Answer,
    ranks: _Ranks,
    by_torch: frozenset[tuple[str, GroupKey]],
    quorums: Mapping[GroupKey, set[str]],
) -> Record:
    identity = one.record.identity
    rows = _rows(one, by_torch)
    status = _status(one, by_torch)
    tables = _Tables(
        groups=tuple(dict.fromkeys([*(row.group for row in rows), *status])),
        payloads=tuple(dict.fromkeys(_with_root(row.payload, one, ranks) for row in rows)),
        sites=tuple(dict.fromkeys(row.site for row in rows if row.site is not None)),
    )
    backends = [found.backend for found, _ in one.dumps] or [Backend.RING]
    backend = Backend.NCCL if Backend.NCCL in backends else backends[0]
    return Record(
        rank=ranks.number[identity.group, identity.group_rank],
        path=one.path,
        dump=Dump(
            backend=Backend.RING if one.ring else backend,
            version="" if not one.dumps else one.dumps[0][0].version,
            only_active=_only_active(one, rows),
            dropped=one.record.dropped,
            groups=tuple(_local(key, one, ranks, quorums) for key in tables.groups),
            status={tables.groups.index(key): head for key, head in status.items()},
            unplaced=0,
            payloads=tables.payloads,
            sites=tables.sites,
            columns=_columns(rows, one, ranks, tables),
            global_peers=True,
        ),
    )


def _rows(one: Answer, by_torch: frozenset[tuple[str, GroupKey]]) -> list[Row]:
    """Each group's rows from the one record that is taken for it, in order of their calls."""
    mine = {row.group for row in one.ring if not row.p2p}
    ring = [row for row in one.ring if row.p2p or _where(one, row.group) not in by_torch]
    sends = {row.group for row in one.torch if row.p2p}
    torch = [
        row for row in one.torch if row.group not in mine or _where(one, row.group) in by_torch
    ]
    rows = [row for row in ring if not (row.p2p and row.group in sends)] + torch
    if all(row.created_ns != NONE for row in rows):
        rows.sort(key=lambda row: row.created_ns)
    return rows


def _status(one: Answer, by_torch: frozenset[tuple[str, GroupKey]]) -> dict[GroupKey, Status]:
    """Where torch says the groups are that are counted as it counts."""
    mine = {row.group for row in one.ring if not row.p2p}
    heads = {
        keys[index]: head
        for found, keys in one.dumps
        for index, head in sorted(found.status.items())
    }
    return {
        key: head for key, head in heads.items() if key not in mine or _where(one, key) in by_torch
    }


def _only_active(one: Answer, rows: Sequence[Row]) -> bool:
    """Whether only unfinished calls were asked for: evident from numbers that are missing."""
    if any(row.state is State.COMPLETED for row in rows):
        return False
    torch = any(found.only_active for found, _ in one.dumps)
    ring = bool(one.record.ring) and (one.record.ring[0].id or 0) > one.record.dropped + 1
    return torch or ring


def _local(
    key: GroupKey, one: Answer, ranks: _Ranks, quorums: Mapping[GroupKey, set[str]]
) -> LocalGroup:
    """The group with its members as global ranks.

    Across replica groups every group rank has a group of its own, with its like in each replica
    group that was in the quorum; one that has not answered may have been in it too.
    """
    identity = one.record.identity
    if key.across:
        lane = identity.group_rank
        like = [(group, lane) for group in sorted(quorums.get(key, ()))]
        members = tuple(ranks.number[place] for place in like if place in ranks.number)
        name = key.name if ranks.lanes == 1 else f"{key.name}/{lane}"
        return LocalGroup(name, members=members, age=key.age, generation=key.quorum, inferred=True)
    places = key.places
    if not places and key.name == _WORLD:
        places = tuple(range(identity.world_size))
    return LocalGroup(
        key.name if ranks.alone else f"{identity.group}/{key.name}",
        members=ranks.members(identity.group, places),
        age=key.age,
        generation=key.quorum,
    )


def _with_root(payload: Payload, one: Answer, ranks: _Ranks) -> Payload:
    if payload.root is None:
        return payload
    root = ranks.number.get((one.record.identity.group, payload.root))
    return replace(payload, root=root)


def _columns(
    rows: Sequence[Row], one: Answer, ranks: _Ranks, tables: _Tables
) -> dict[str, NDArray[Any]]:
    """The rows as columns; peers are numbered in the job already."""
    group = {key: at for at, key in enumerate(tables.groups)}
    payload = {known: at for at, known in enumerate(tables.payloads)}
    site = {text: at for at, text in enumerate(tables.sites)}
    home = one.record.identity.group
    values: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in _AS_THEY_ARE
    }
    values |= {
        "group": [group[row.group] for row in rows],
        "payload": [payload[_with_root(row.payload, one, ranks)] for row in rows],
        "site": [NONE if row.site is None else site[row.site] for row in rows],
        "peer": [ranks.number.get((home, row.peer), NONE) for row in rows],
    }
    return {name: np.array(listed, COLUMNS[name]) for name, listed in values.items()}
