"""Small jobs, written down as what each rank called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightkeeper.monitor.records.job import (
    COLUMNS,
    NONE,
    Backend,
    CollectiveState,
    Group,
    GroupStatus,
    Job,
    Payload,
    RankInfo,
)

DONE, OPEN, BEGUN, FAILED = (
    CollectiveState.COMPLETED,
    CollectiveState.SCHEDULED,
    CollectiveState.STARTED,
    CollectiveState.FAILED,
)
WORLD = "world"
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Call:
    """One entry: `Call("tp", "all_gather")` is completed, `.open()` is not."""

    group: str = WORLD
    op: str = "all_reduce"
    state: CollectiveState = DONE
    size: int = 8
    dtype: str = "float32"
    site: str = ""
    peer: int = NONE
    root: int | None = None
    thread: int = NONE

    def open(self) -> Call:
        return replace(self, state=OPEN)

    def begun(self) -> Call:
        return replace(self, state=BEGUN)

    def failed(self) -> Call:
        return replace(self, state=FAILED)


def send(peer: int, group: str = WORLD) -> Call:
    return Call(group, "send", OPEN, peer=peer)


def whole(group: str = WORLD) -> Call:
    """What ends a batch of sends and receives; it has the sequence of its parts."""
    return Call(group, "coalesced", OPEN)


def recv(peer: int, group: str = WORLD) -> Call:
    return Call(group, "recv", OPEN, peer=peer)


def many(count: int, call: Call | None = None) -> list[Call]:
    return [call or Call()] * count


def job(
    called: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]] | None = None, *,
    silent: Sequence[int] = (), backend: Backend = Backend.NCCL, only_active: bool = False,
    status: Mapping[int, Mapping[str, GroupStatus]] | None = None, waited_s: float | None = None,
    generations: Mapping[str, int] | None = None,
) -> Job:  # fmt: skip
    """The normal form of what `called` says; `silent` ranks have no record.

    `groups`: name -> members, besides the world of all ranks. `only_active`: completed entries
    are left out. `waited_s`: how long after the last call the records were written.
    """
    everyone = sorted([*called, *silent])
    members: dict[str, Sequence[int]] = {WORLD: everyone, **(groups or {})}
    names = list(members)
    payloads: dict[Payload, int] = {}
    sites: dict[str, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for rank in sorted(called):
        counts: dict[tuple[str, bool], int] = {}
        for number, call in enumerate(called[rank]):
            p2p = call.op in ("send", "recv", "coalesced")
            key = call.group, p2p
            counts[key] = counts.get(key, 0) + (call.op != "coalesced")
            if only_active and call.state is DONE:
                continue
            payload = Payload(
                op=call.op,
                recorded=f"nccl:{call.op}",
                sizes_in=((call.size,),),
                sizes_out=((call.size * _growth(call.op, len(members[call.group])),),),
                dtypes_in=(call.dtype,),
                dtypes_out=(call.dtype,),
                root=call.root,
            )
            row = {
                "rank": rank, "group": names.index(call.group), "seq": counts[key],
                "op_id": counts[key], "record": number, "state": call.state, "p2p": p2p,
                "payload": payloads.setdefault(payload, len(payloads)),
                "site": sites.setdefault(call.site, len(sites)) if call.site else NONE,
                "peer": call.peer, "thread": call.thread, "blocking": False,
                "created_ns": SECOND_NS + number, "started_ns": NONE, "completed_ns": NONE,
            }  # fmt: skip
            for name, value in row.items():
                columns[name].append(value)
    statuses = status or {}
    taken_ns = NONE if waited_s is None else int((1 + waited_s) * SECOND_NS)
    return Job(
        expected=tuple(everyone),
        ranks={
            rank: RankInfo(
                rank,
                backend,
                only_active=only_active,
                status={names.index(g): s for g, s in statuses.get(rank, {}).items()},
                taken_ns=taken_ns,
            )
            for rank in sorted(called)
        },
        groups=tuple(
            Group(name, members=tuple(members[name]), generation=(generations or {}).get(name))
            for name in names
        ),
        payloads=tuple(payloads),
        sites=tuple(sites),
        columns={name: np.array(values, COLUMNS[name]) for name, values in columns.items()},
    )


def _growth(op: str, size: int) -> int:
    return size if op == "all_gather" else 1
