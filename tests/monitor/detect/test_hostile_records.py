"""A rank that sends the worst records beside an honest fault: it costs itself its record."""

import dataclasses
from functools import cache

import pytest

from lightkeeper.monitor.detect import recorded
from lightkeeper.monitor.records import ring as ring_rows
from lightkeeper.monitor.records.ring import bounded
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import BackendRecord, FlightRecord, RingEntry
from tests.deep import crossed
from tests.monitor.fleet import Drive, SimFleet, at, hang, mismatch
from tests.monitor.records.dumps import config, nccl, pending

N = 10_000
"""More than is ever read of a record."""


def call(seq=1, group="default", **changes):
    return RingEntry(group, seq, "all_reduce", enter_age_s=5.0, **changes)


@cache
def torch(groups=1):
    names = [f"g{i % groups}" for i in range(N)]
    return nccl(
        *(pending(i, 1, process_group=[n, "d"], pg_id=i % groups) for i, n in enumerate(names))
    )


def worlds(honest):
    identity = dataclasses.replace(honest.identity, world_size=1 << 16)
    members = {"default": tuple(range(1 << 16))}
    return {"identity": identity, "members": members, "ring": (call(),) * N}


WORST = {
    "calls that begin again": lambda _: {"ring": (call(),) * N},
    "a group for each call": lambda _: {"ring": tuple(call(1, f"g{i}") for i in range(N))},
    "many groups and then one": lambda _: {
        "ring": (*(call(1, f"g{i}") for i in range(N)), *((call(1, "x"),) * N))
    },
    "a quorum for each call": lambda _: {
        "ring": tuple(call(1, "torchft", quorum=i) for i in range(N))
    },
    "sequence ids that descend": lambda _: {"ring": tuple(call(N - i) for i in range(N))},
    "a world that is not there": worlds,
    "numbers that no program has": lambda _: {"ring": (call(1 << 62),)},
    "ages that no program has": lambda _: {
        "ring": (RingEntry("default", 1, "barrier", enter_age_s=1e99),)
    },
    "torch's by the thousand": lambda _: {"torch": torch()},
    "a group for each of torch's": lambda _: {
        "torch": torch(N)
    },
    "groups without entries": lambda _: {
        "torch": nccl(pg_config=config(**{str(i): ("d", (0, 1)) for i in range(N)}))
    },
    "recorders": lambda _: {"recorders": {str(i): BackendRecord(torch()) for i in range(50)}},
    "a call that is all of torch's": lambda _: {
        "ring": (call(1, torch_ids=tuple(range(N))),), "torch": torch()
    },
}  # fmt: skip


def lying(rank, worst):
    """Each record of this rank's is the worst."""
    changes = {}

    def alter(snapshot):
        record = snapshot.records.get(rank)
        if not isinstance(record, FlightRecord):
            return snapshot
        if not changes:
            changes.update(worst(record))
        records = {**snapshot.records, rank: dataclasses.replace(record, **changes)}
        return dataclasses.replace(snapshot, records=records)

    return alter


def mismatching():
    return SimFleet(2, 6, [at(20, mismatch("rg_0.0", "size"))])


def hanging():
    return SimFleet(2, 4, [at(20, hang("rg_0.0"))])


@cache
def when_all_are_honest(fleet):
    """Seconds until the first eviction."""
    return Drive(fleet()).run(60).evicts[0][0]


@pytest.mark.integration  # no processes, but 3 s of CPU
@pytest.mark.parametrize(
    ("worst", "fault"),
    crossed(WORST, [(mismatching, "rg_0.5", "mismatch"), (hanging, "rg_0.3", "not_entered")]),
)
def test_the_fault_beside_it_is_named_and_evicted_in_its_time(worst, fault) -> None:
    fleet, liar, kind = fault
    honest_s = when_all_are_honest(fleet)
    drive = Drive(fleet(), alter=lying(liar, WORST[worst])).run(round(honest_s) + 5)
    assert drive.incident(kind).culprits == ("rg_0.0",)
    assert drive.evicted() == ["rg_0"]
    assert drive.evicts[0][0] <= honest_s


@pytest.mark.parametrize("worst", WORST.values(), ids=WORST.keys())
def test_what_is_read_of_it_has_a_bound(worst) -> None:
    rank = SimFleet(1, 2)._record("rg_0.0")
    assert isinstance(rank, FlightRecord)
    try:
        record = bounded(dataclasses.replace(rank, **worst(rank)))
    except FlightRecordError:
        return  # nothing of it
    parts = [len(part.record["entries"]) for _, part in record.parts if part.record]
    assert len(record.ring) <= 2048
    assert sum(parts) <= 8192
    assert record.dropped + len(record.ring) == len(worst(rank).get("ring", rank.ring))


def test_a_record_that_lies_is_read_every_few_seconds_and_not_each_tick(monkeypatch) -> None:
    read = []
    plain = ring_rows.read_answer
    monkeypatch.setattr(
        ring_rows, "read_answer", lambda *a, **k: (read.append(a), plain(*a, **k))[1]
    )
    recorded._LATELY.clear()
    Drive(mismatching(), alter=lying("rg_0.5", WORST["calls that begin again"])).run(40)
    assert len(read) <= 6 * 7
