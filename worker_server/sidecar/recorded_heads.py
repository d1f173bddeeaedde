"""Where the rank stands in process groups that torch's own recorders tell of: NCCL's above all.

Theory of operation. A recorder's status has three counts for each process group: collectives that
the host enqueued, that the device started, and that it completed. What a group is called and how
large it is, the recorder's entries and its configuration say; a reading without entries, which is
cheap, is understood by the last one that had them. Left out are groups that nothing names and
TorchFT's (the ring has those, with quorums), groups of one, and groups with point-to-point calls,
which torch counts in the same place. A count that stays unfinished while the rank goes on for long
belongs to a group that was aborted.

Pure; what comes from a recorder that is odd says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from worker_server.wire import ACROSS, GroupHead

_STALE_S: Final = 30.0
"""A reading that is older tells no head any more."""
_ABANDONED_S: Final = 60.0
_WORLD: Final = "default_pg"
_DIGITS: Final = re.compile(r"\d{1,18}", re.ASCII)
_COUNTS: Final = (
    "last_enqueued_collective",
    "last_started_collective",
    "last_completed_collective",
)


class _Counts(NamedTuple):
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    size: int
    last: tuple[int, str]
    """Sequence id and operation of its youngest entry."""


@dataclass(frozen=True, slots=True)
class _Head:
    group: _Group
    counts: _Counts
    since_s: float
    read_s: float


class RecordedHeads:
    """Of all recorders of a rank; times are monotonic. One thread takes, any may ask."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Group | None]] = {}
        """By question and by torch's number of the process group; None: left out."""
        self._heads: dict[tuple[str, str], _Head] = {}

    def take(self, question: str, record: Mapping[str, Any], now_s: float, moved_s: float) -> None:
        """What a recorder said now, with or without its entries; the rank itself moved last then.

        A group that is seen for the first time stands since that moment, as far as is known.
        """
        groups = self._groups.setdefault(question, {})
        if "entries" in record:
            groups.update(_groups(record))
        heads = {key: head for key, head in self._heads.items() if key[0] != question}
        for number, counts in _statuses(record):
            group = groups.get(number)
            if group is None:
                continue
            before = self._heads.get((question, number))
            since_s = min(now_s, moved_s)
            if before is not None:
                since_s = before.since_s if before.counts == counts else now_s
            heads[question, number] = _Head(group, counts, since_s, now_s)
        self._heads = heads

    def told(self, now_s: float, moved_s: float) -> tuple[GroupHead, ...]:
        """The heads by now; `moved_s`: when anything else of the rank moved last."""
        by_name = {
            head.group.name: _told(head, now_s)
            for _, head in sorted(self._heads.items())
            if now_s - head.read_s <= _STALE_S
            and not (_unfinished(head) and moved_s - head.since_s > _ABANDONED_S)
        }
        return tuple(by_name.values())


def _unfinished(head: _Head) -> bool:
    return head.counts.enqueued > head.counts.completed


def _told(head: _Head, now_s: float) -> GroupHead:
    enqueued, started, completed = head.counts
    seq, op = head.group.last
    return GroupHead(
        name=head.group.name,
        size=head.group.size,
        enqueued=enqueued,
        completed=completed,
        op=op if seq == enqueued else "",
        age_s=max(0.0, now_s - head.since_s),
        inside=completed + 1 if _unfinished(head) else 0,
        started=started,
        read_age_s=max(0.0, now_s - head.read_s),
    )


def _statuses(record: Mapping[str, Any]) -> Iterator[tuple[str, _Counts]]:
    """Counts that can be: nothing is completed before it was enqueued."""
    statuses = record.get("pg_status")
    for number, status in statuses.items() if isinstance(statuses, Mapping) else ():
        if not isinstance(status, Mapping):
            continue
        counts = [_count(status.get(name)) for name in _COUNTS]
        if 0 < counts[0] == max(counts):
            yield str(number), _Counts(*counts)


def _count(value: Any) -> int:
    """A sequence id; torch writes it as a number or in quotes, and -1 for none."""
    match = _DIGITS.fullmatch(str(value)) if type(value) in (int, str) else None
    return int(match.group()) if match is not None else 0


def _groups(record: Mapping[str, Any]) -> dict[str, _Group | None]:
    """The process groups that have entries, by torch's number."""
    found: dict[str, _Group | None] = {}
    entries = record.get("entries")
    for row in entries if isinstance(entries, list | tuple) else ():
        if not isinstance(row, Mapping):
            continue
        number, seq, named = (
            row.get("pg_id"),
            row.get("collective_seq_id"),
            row.get("profiling_name"),
        )
        if type(number) is not int or type(seq) is not int or not isinstance(named, str):
            continue
        key, (backend, _, call) = str(number), named.rpartition(":")
        if key in found and found[key] is None:
            continue
        name, size = _named(row.get("process_group")), _size(record, row.get("process_group"))
        if row.get("is_p2p") is not False or name is None or size < 2:
            found[key] = None
        else:
            found[key] = _Group(f"{backend or 'torch'}:{name}", size, (seq, call.partition(" ")[0]))
    return found


def _named(names: Any) -> str | None:
    """The same on every rank of the group, and no other group's of this rank; None: nobody can
    tell, or TorchFT's.
    """
    if not isinstance(names, list | tuple) or len(names) != 2:
        return None
    name, desc = names
    if not isinstance(name, str) or not isinstance(desc, str) or not name:
        return None
    if name.startswith(ACROSS) or desc.startswith(ACROSS):
        return None
    if desc == _WORLD:
        return desc
    return f"{desc}/{name}" if desc not in ("", "undefined") else name


def _size(record: Mapping[str, Any], names: Any) -> int:
    """How many ranks are members, by the recorder's configuration; 0: it does not say."""
    groups = record.get("pg_config")
    group = groups.get(names[0]) if isinstance(groups, Mapping) and names else None
    ranks = group.get("ranks") if isinstance(group, Mapping) else None
    return len(_DIGITS.findall(ranks)) if isinstance(ranks, str) else 0
