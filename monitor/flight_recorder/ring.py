"""From the WorkerServer's collective ring: the record that carries the diagnosis with gloo."""

from __future__ import annotations

from monitor.flight_recorder.ops import POINT_TO_POINT, op_name
from monitor.flight_recorder.record import Entry, FlightRecordError, RankRecord
from monitor.flight_recorder.signature import signature
from worker_server.wire import FlightRecord, RingEntry


def from_ring(record: FlightRecord) -> RankRecord:
    """The ring of one rank in normal form; point-to-point operations are left out.

    Sequence ids that start again belong to a new process group of the same name: the entries
    of the old one are dropped.

    Raises:
        FlightRecordError: a sequence id below 1.
    """
    entries: list[Entry] = []
    last: dict[str, int] = {}
    for item in record.ring:
        if op_name(item.op) in POINT_TO_POINT:
            continue
        if item.seq < 1:
            raise FlightRecordError(
                f"ring of {record.identity.rank}: sequence {item.seq} of {item.group!r}"
            )
        if item.seq <= last.get(item.group, 0):
            entries = [entry for entry in entries if entry.process_group != item.group]
        last[item.group] = item.seq
        entries.append(_entry(item))
    return RankRecord(
        incarnation=record.identity.incarnation,
        entries=tuple(entries),
        members=dict(record.members),
    )


def _entry(item: RingEntry) -> Entry:
    return Entry(
        process_group=item.group,
        seq=item.seq,
        signature=signature(
            item.op,
            item.sizes_in,
            item.sizes_out,
            dtype=item.dtype,
            reduce_op=item.reduce_op,
            root=item.root,
        ),
        left=item.exit_age_s is not None,
        nth=item.nth,
        attempt=item.attempt,
        site=item.site,
        error=item.error,
    )
