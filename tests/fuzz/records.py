"""Whatever bytes a file holds, reading it ends in a job or in the one parse error.

Two ways in: bytes as they come, and a record in which values have been replaced by odd ones (bytes
alone hardly ever make JSON that parses).
"""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy

from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records import ring as ring_rows
from lightkeeper.monitor.records.dump import Record, assemble
from lightkeeper.monitor.records.ring import from_answers
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import WireError, parse_flight_record
from tests.fuzz.games import ODD, places
from tests.monitor.records.answers import answer
from tests.monitor.records.dumps import (
    as_json,
    as_pickle,
    config,
    gloo,
    nccl,
    pending,
    send,
    status,
)
from tests.monitor.records.dumps import entry as completed

FRAMES = [{"name": "step", "filename": "/home/u/train.py", "line": 12}]


def templates():
    """Records that together have everything that is read."""
    groups = config(**{"0": ("default_pg", range(4)), "7": ("TP", (0, 1)), "9": ("", (0,))})
    seen = status(p0=(3, 3, 2), p1=(1, 1, 1), p2=(4, 4, 4))
    yield nccl(
        completed(0, 1, frames=FRAMES),
        pending(1, 2, pg_id=1, process_group=("7", "TP")),
        send(2, 1),
        send(3, 1, "nccl:recv 0<-1"),
        send(4, 1, "nccl:coalesced", input_sizes=[], output_sizes=[]),
        pg_config=groups,
        pg_status=seen,
    )
    yield gloo(completed(3, 1), pending(4, 2), pending(5, 1, process_group=["", ""], pg_id=4))
    yield answer()


def seeds():
    """Files to begin with."""
    for template in templates():
        if "version" not in template:
            yield json.dumps(template).encode()
            continue
        yield as_json(template)
        for protocol in (2, 4):
            yield as_pickle(template, protocol)


def read(value) -> None:
    """One decoded record, all the way to a job."""
    if "identity" in value and "schema" in value:
        try:
            record = parse_flight_record(value)
        except WireError:
            return
        from_answers([ring_rows.read_answer(record)])
    else:
        assemble([Record(rank, dump.read_dump(value)) for rank in (0, 1)])


def read_bytes(data: bytes) -> None:
    """A file of these bytes; raises only what nobody should raise."""
    with contextlib.suppress(FlightRecordError):
        read(dump.decode(data))


def read_mutated(data: bytes) -> None:
    """A record in which pairs of bytes say what to replace, and by what."""
    if not data:
        return
    every = list(templates())
    value = deepcopy(every[data[0] % len(every)])  # templates share parts with later ones
    for at in range(1, min(len(data) - 1, 40), 2):
        _replace(value, data[at], deepcopy(ODD[data[at + 1] % len(ODD)]))
    with contextlib.suppress(FlightRecordError):
        read(value)


def _replace(value, choice: int, by) -> None:
    """Put `by` at one of the places of `value`, or take away what is there."""
    if not (every := places(value)):
        return
    box, key = every[(choice * 7) % len(every)]
    if by is None and choice % 2 and isinstance(box, dict):
        del box[key]
    else:
        box[key] = by
