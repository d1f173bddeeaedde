"""Records of torchcomms: one count for all communicators, no status, no mark of a send."""

import json

import pytest

from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records import ring as ring_rows
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.dump import UNCOUNTED, Record, assemble
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import CollectiveState
from lightkeeper.monitor.records.ring import from_answers
from lightkeeper.worker_server.wire import parse_flight_record
from tests.monitor.records.answers import answer
from tests.monitor.records.dumps import config

CREATED = 1_795_000_000_000_000_000


def comms(calls, groups, *, left=0, device=True, backend="ncclx"):
    """What a rank's recorder says of calls (group, operation, state), `left` of them forgotten."""
    entries = []
    for number, (group, op, state) in enumerate(calls):
        retired = state == "completed"
        moment = CREATED + number * 10_000_000
        entries.append(
            {
                "record_id": number, "pg_id": list(groups).index(group),
                "process_group": [group, backend], "thread_name": "python", "thread_id": "1",
                "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
                "profiling_name": f"{backend}:{op}", "time_created_ns": moment,
                "input_sizes": [[8]], "input_dtypes": ["Float"],
                "output_sizes": [[8]], "output_dtypes": ["Float"],
                "state": state if device else "scheduled", "retired": retired,
                "time_discovered_started_ns": moment if device and state != "scheduled" else 0,
                "time_discovered_completed_ns": moment if device and retired else 0,
                "timeout_ms": 600_000, "is_p2p": False,
            }
        )  # fmt: skip
    return {
        "version": "2.10", "comm_lib_version": "",
        "pg_config": config(**{name: (backend, ranks) for name, ranks in groups.items()}),
        "pg_status": {}, "entries": entries[left:],
    }  # fmt: skip


def calls(*groups, op="all_reduce"):
    return [(group, op, "completed") for group in groups]


def job(*records):
    return assemble(Record(rank, dump.read_dump(said)) for rank, said in enumerate(records))


def offline(*records):
    return job(*records)


def live(*records):
    size = len(records)
    answers = []
    for rank, said in enumerate(records):
        part = {"record": said, "age_s": 0.1, "only": [r["record_id"] for r in said["entries"]]}
        plain = answer(rank=rank, size=size, torch=None)
        plain["ring"] = []
        plain["recorders"] = {"torchcomms_fr_trace_json": part}
        answers.append(ring_rows.read_answer(parse_flight_record(json.loads(json.dumps(plain)))))
    return from_answers(answers)


WORLD = {"world": (0, 1, 2)}
PAIRED = {"world": (0, 1, 2), "pair": (0, 1)}


@pytest.mark.parametrize("read", [offline, live])
def test_calls_are_counted_group_by_group(read):
    """Rank 2 is in no pair, so that the common count of the others runs ahead of its own."""
    both = comms(calls("world", "pair", "pair", "world"), PAIRED)
    records = read(both, both, comms(calls("world", "world"), WORLD))
    groups = [records.groups[at].name for at in records.columns["group"]]
    listed = zip(
        records.columns["rank"].tolist(), groups, records.columns["seq"].tolist(), strict=True
    )
    assert sorted(listed) == [
        (0, "pair", 1), (0, "pair", 2), (0, "world", 1), (0, "world", 2),
        (1, "pair", 1), (1, "pair", 2), (1, "world", 1), (1, "world", 2),
        (2, "world", 1), (2, "world", 2),
    ]  # fmt: skip
    assert not analyse(records).findings


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("read", [offline, live])
def test_who_does_not_come_is_named(read, device):
    stuck = [*calls("world", "pair", "pair", "world"), ("world", "all_reduce", "started")]
    both = comms(stuck, PAIRED, device=device)
    records = read(both, both, comms(calls("world", "world"), WORLD, device=device))
    (finding,) = analyse(records).findings
    assert finding.culprits == (2,)
    assert finding.kind in (Fault.NOT_ENTERED, Fault.NOT_ENQUEUING)


def test_what_is_retired_is_over_and_without_events_the_rest_is_unknown():
    said = comms([("world", "all_reduce", "completed"), ("world", "barrier", "started")], WORLD)
    said["entries"][0]["state"] = "started"  # nobody looked at its events after its work was over
    states = dump.read_dump(said).columns["state"].tolist()
    assert states == [CollectiveState.COMPLETED, CollectiveState.STARTED]
    said = comms([("world", "all_reduce", "completed"), ("world", "barrier", "started")], WORLD,
                 device=False)  # fmt: skip
    assert dump.read_dump(said).columns["state"].tolist() == [
        CollectiveState.COMPLETED,
        CollectiveState.UNKNOWN,
    ]


def test_sends_count_by_themselves():
    said = comms(
        [*calls("world"), *calls("world", op="send"), *calls("world", op="recv"), *calls("world")],
        WORLD,
    )
    records = job(said)
    columns = zip(records.columns["p2p"].tolist(), records.columns["seq"].tolist(), strict=True)
    assert list(columns) == [(False, 1), (True, 1), (True, 2), (False, 2)]


def test_overwritten_records_of_ranks_that_make_the_same_calls_are_compared():
    long = calls(*["world", "pair"] * 20)
    groups = {"world": (0, 1), "pair": (0, 1)}
    stuck = [*long, ("world", "all_reduce", "started")]
    records = job(comms(stuck, groups, left=8), comms(long, groups, left=7))
    (finding,) = analyse(records).findings
    assert finding.culprits == (1,)
    assert not records.problems


@pytest.mark.parametrize("read", [offline, live])
def test_overwritten_records_of_ranks_that_make_other_calls_accuse_nobody_and_say_so(read):
    ahead = [*calls("pair"), *calls(*["world", "pair"] * 20), ("world", "all_reduce", "started")]
    groups = {"world": (0, 1), "pair": (0, 1)}
    records = read(
        comms(ahead, groups, left=9), comms(calls(*["world", "pair"] * 20), groups, left=8)
    )
    assert not analyse(records).culprits
    assert any(UNCOUNTED in problem.reason for problem in records.problems)


def test_torchs_own_records_are_none_of_them():
    named = comms(calls("world"), WORLD)
    for change in (
        {"pg_status": {"0": {"last_enqueued_collective": 1}}},
        {"entries": [{**named["entries"][0], "process_group": ["0", "default_pg"]}]},
    ):
        assert not dump.read_dump(named | change).shared_count
    assert dump.read_dump(named).shared_count
