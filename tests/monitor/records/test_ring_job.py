"""WorkerServers' answers become one job: the ring, torch's record, or each where it knows more."""

from pathlib import Path

import pytest

from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records import ring as ring_rows
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import Backend, CollectiveState, GroupStatus, Problem
from lightkeeper.monitor.records.ring import from_answers
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import parse_flight_record
from tests.monitor.records.answers import answer, call
from tests.monitor.records.dumps import CREATED, config, entry, gloo, nccl, pending, status


def job(*answers, **options):
    return from_answers(
        [ring_rows.read_answer(parse_flight_record(body)) for body in answers], **options
    )


def rows(records, *names):
    columns = [records.columns[name].tolist() for name in names]
    return list(zip(*columns, strict=True))


def states(records):
    return [CollectiveState(state).name.lower() for state in records.columns["state"]]


INSIDE = {"exit_age_s": None}


def test_ranks_are_numbered_by_replica_group_and_group_rank() -> None:
    records = job(
        answer(call(), group="rg_1", rank=1), answer(call(), group="rg_0"),
        lost={RankName("rg_2.0"): Problem("", "refused")},
    )  # fmt: skip
    assert dict(records.names) == {
        0: "rg_0.0", 1: "rg_0.1", 2: "rg_1.0", 3: "rg_1.1", 4: "rg_2.0",
    }  # fmt: skip
    assert tuple(records.ranks) == (0, 3)
    assert records.silent == (1, 2, 4)
    assert records.hosts[3] == "host-rg_1"
    assert records.ranks[0].backend is Backend.RING


def test_each_replica_group_has_groups_of_its_own() -> None:
    records = job(answer(call(), group="rg_0"), answer(call(), group="rg_1"))
    assert {group.name: group.members for group in records.groups} == {
        "rg_0/default": (0, 1), "rg_1/default": (2, 3),
    }  # fmt: skip
    assert not any(group.inferred for group in records.groups)


def test_the_ring_tells_exits_errors_and_who_is_inside() -> None:
    records = job(answer(call(1, 1), call(2, 2, error="boom"), call(3, 3, **INSIDE), torch=None))
    assert states(records) == ["completed", "failed", "unknown"]
    payload = records.payloads[0]
    assert (payload.op, payload.reduce_op, payload.dtypes_in) == ("all_reduce", "sum", ("float32",))
    assert records.sites == ("train.py:12",)


def test_a_dead_rank_is_known_to_be_dead() -> None:
    records = job(answer(call(), alive=False), answer(call(), rank=1))
    assert [info.alive for info in records.ranks.values()] == [False, True]


def test_roots_and_peers_are_global_ranks() -> None:
    records = job(
        answer(call(1, 1, op="broadcast", root=1), call(2, 2, op="irecv", root=0), rank=1),
        answer(call(1, 1, op="broadcast", root=1), group="rg_1"),
    )
    assert [payload.root for payload in records.payloads] == [1, None, 3]
    assert rows(records, "rank", "p2p", "peer") == [(1, False, -1), (1, True, 0), (2, False, -1)]
    assert records.payloads[1].op == "recv"


def test_a_ring_that_names_no_thread_counts_sends_among_the_collectives() -> None:
    """As a WorkerServer up to 0.2 did; where calls are lost, nobody knows how many sends."""
    whole = job(
        answer(call(1, 1), call(2, 2, op="send", root=1), call(3, 3)),
        answer(call(1, 1), call(2, 2), rank=1),
    )
    assert rows(whole, "rank", "p2p", "seq") == [
        (0, False, 1), (0, True, 2), (0, False, 2), (1, False, 1), (1, False, 2),
    ]  # fmt: skip
    part = job(
        answer(call(2, 2, op="send", root=1), call(3, 3), torch=None),
        answer(call(1, 1), call(2, 2), rank=1),
    )
    assert rows(part, "rank", "seq") == [(1, 1), (1, 2)]


def test_sends_are_no_new_group_though_each_pair_counts_from_one() -> None:
    records = job(
        answer(call(1, 1, thread=7), call(2, 1, op="send", root=1, thread=7),
               call(3, 1, op="recv", root=1, tag=4, thread=7), call(4, 2, thread=7)),
        answer(call(1, 1, thread=8), call(2, 2, thread=8), rank=1),
    )  # fmt: skip
    assert rows(records, "rank", "p2p", "seq") == [
        (0, False, 1), (0, True, 1), (0, True, 1), (0, False, 2), (1, False, 1), (1, False, 2),
    ]  # fmt: skip
    assert len(records.groups) == 1
    assert {payload.op: payload.tag for payload in records.payloads} == {
        "all_reduce": 0, "send": 0, "recv": 4,
    }  # fmt: skip


def test_transfers_that_one_line_posts_are_one_operation() -> None:
    posted = {"op": "isend", "is_async": True, "site": "pipe.py:7", **INSIDE}
    records = job(
        answer(
            call(1, 1, root=1, **posted), call(2, 1, root=2, **posted),
            call(3, 1, root=3, **{**posted, "site": "pipe.py:9"}), call(4, 1),
        ),
    )  # fmt: skip
    assert rows(records, "op_id") == [(1,), (1,), (3,), (4,)]


def test_on_gloo_the_ring_is_taken_where_it_has_everything() -> None:
    records = job(answer(call(1, 1, torch_ids=[0]), call(2, 2, torch_ids=[1], **INSIDE),
                       torch=gloo(entry(0, 1), pending(1, 2))))  # fmt: skip
    assert states(records) == ["completed", "unknown"]
    assert rows(records, "record") == [(1,), (2,)]


def test_torch_records_what_ddps_reducer_does_and_the_ring_adds_sites_and_roots() -> None:
    ring = (call(1, 1, op="broadcast", root=0, torch_ids=[0]),)
    torch = gloo(entry(0, 1, profiling_name="nccl:broadcast"), entry(1, 2), pending(2, 3))
    whole = answer(*ring, torch=torch, torch_only=[1, 2])
    records = job(whole, answer(*ring, rank=1, torch=torch, torch_only=[1, 2]))
    assert rows(records, "rank", "seq") == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert states(records)[:3] == ["completed", "completed", "unknown"]
    assert records.payloads[0].root == 0
    assert records.sites == ("train.py:12",)


def test_the_ring_counts_where_it_has_later_calls_than_torchs_record_of_a_dead_rank() -> None:
    ring = call(1, 1, torch_ids=[0], enter_age_s=20.0, exit_age_s=19.0), call(2, 2)
    of = {"torch": gloo(entry(0, 1), entry(1, 2)), "torch_only": [1]}
    late = answer(*ring, torch_age_s=12.0, **of)
    assert rows(job(late, answer(*ring, rank=1, **of)), "rank", "record")[1::2] == [(0, 2), (1, 2)]
    sooner = job(*(answer(*ring, rank=rank, torch_age_s=0.1, **of) for rank in (0, 1)))
    assert rows(sooner, "rank", "record")[1::2] == [(0, 1), (1, 1)]


def parting(rank: int, first: int = 10):
    """Twelve calls; rank 2's are on another line from `first` on, and its last is another op."""
    odd = rank == 2
    ring = [
        call(n, n, site="eval.py:3" if odd and n >= first else "train.py:12",
             op="broadcast" if odd and n == 12 else "all_reduce",
             enter_age_s=30.0 - n, exit_age_s=None if n == 12 else 29.5 - n)
        for n in range(1, 13)
    ]  # fmt: skip
    return answer(*ring, rank=rank, size=3, torch=None)


def test_where_lines_part_before_the_calls_do_is_told() -> None:
    (finding,) = analyse(job(*map(parting, range(3)))).findings
    assert (finding.kind, finding.culprits, finding.sequence) == (Fault.MISMATCH, (2,), 12)
    assert finding.reason.endswith(
        "Their lines part in collective 10: rank rg_0.2 at eval.py:3, rank rg_0.0 at train.py:12."
    )


def test_lines_that_always_differ_are_roles() -> None:
    (finding,) = analyse(job(*(parting(rank, first=1) for rank in range(3)))).findings
    assert finding.reason.endswith("nobody gets out.")


def partly(rank, first, *, op, size=8, reduce_op=None, root=None):
    """Six calls in torch's record, of which the ring has those since the first."""
    name = {"profiling_name": f"nccl:{op}"}
    four = config(**{"0": ("default_pg", range(4))})
    torch = nccl(*(entry(n - 1, n, **name) for n in range(1, 6)),
                 entry(5, 6, input_sizes=[[size, 4]], output_sizes=[[size, 4]], **name),
                 pg_config=four)  # fmt: skip
    ring = (call(n, n, op=op, reduce_op=reduce_op, root=root, torch_ids=[n - 1])
            for n in range(first, 7))  # fmt: skip
    return answer(*ring, rank=rank, size=4, torch=torch, dropped=first - 1)


@pytest.mark.parametrize(
    "said", [{"op": "broadcast", "root": 0}, {"op": "all_reduce", "reduce_op": "SUM"}], ids=str
)
def test_nobody_differs_because_its_ring_has_forgotten_more_than_its_peers(said) -> None:
    records = job(*(partly(rank, 4 if rank == 0 else 2, **said) for rank in range(4)))
    assert not analyse(records).findings


def test_what_all_tell_is_compared_whatever_some_have_forgotten() -> None:
    said = {"op": "all_reduce", "reduce_op": "SUM"}
    usual = [partly(rank, 4, **said) for rank in (0, 1, 2)]
    (size,) = analyse(job(*usual, partly(3, 2, **said, size=9))).findings
    assert (size.kind, size.culprits, size.sequence) == (Fault.MISMATCH, (3,), 6)
    (other,) = analyse(job(*usual, partly(3, 2, op="all_reduce", reduce_op="MAX"))).findings
    assert (other.kind, other.culprits, other.sequence) == (Fault.SILENT_MISMATCH, (3,), 4)


def forgetful(rank, *, root=0, odd_step=10):
    """Ten steps of a broadcast and an all_reduce in torch's record; the ring has the last four."""
    ops = ["broadcast", "all_reduce"] * 10
    torch = nccl(*(entry(n, n + 1, profiling_name=f"nccl:{op}") for n, op in enumerate(ops[:-1])),
                 pg_config=config(**{"0": ("default_pg", range(2))}))  # fmt: skip
    ring = [
        call(n + 1, n + 1, op=op, torch_ids=[n], enter_age_s=20.0 - n, exit_age_s=19.5 - n,
             **({"reduce_op": "SUM"} if n % 2 else {"root": root if n == 2 * odd_step - 2 else 0}))
        for n, op in enumerate(ops[:-1])
    ]  # fmt: skip
    return answer(*ring[12:], rank=rank, torch=torch, dropped=12)


def test_of_two_that_differ_in_the_root_the_one_that_never_had_it_is_wrong() -> None:
    (finding,) = analyse(job(forgetful(0, root=1), forgetful(1))).findings
    assert (finding.kind, finding.culprits, finding.sequence) == (Fault.MISMATCH, (0,), 19)
    # what differs is the first call that both rings have: neither shows what is usual
    (finding,) = analyse(job(forgetful(0, root=1, odd_step=7), forgetful(1))).findings
    assert (finding.kind, finding.culprits, finding.sequence) == (Fault.MISMATCH, (), 13)


def test_a_group_is_counted_by_torch_on_all_ranks_or_on_none() -> None:
    torch = gloo(entry(0, 1), entry(1, 2))
    records = job(
        answer(call(1, 1, torch_ids=[0]), torch=torch, torch_only=[1]),
        answer(call(1, 1), rank=1, torch=None),
    )
    assert rows(records, "rank", "seq") == [(0, 1), (1, 1)]


def test_with_nccl_states_and_statuses_are_torchs() -> None:
    torch = nccl(
        entry(0, 1), pending(1, 2), pg_config=config(**{"0": ("default_pg", range(2))}),
        pg_status=status(p0=(2, 1, 1)),
    )  # fmt: skip
    records = job(answer(call(1, 1, torch_ids=[0]), call(2, 2, torch_ids=[1]), torch=torch))
    assert states(records) == ["completed", "scheduled"]
    assert records.ranks[0].status == {0: GroupStatus(2, 1, 1)}


def test_torchfts_groups_are_of_a_quorum_and_a_group_rank() -> None:
    def one(group, rank, quorum):
        calls = [call(n, 4, group="torchft", quorum=n) for n in range(4, quorum + 1)]
        return answer(*calls, group=group, rank=rank, torch=None)

    records = job(one("rg_0", 0, 5), one("rg_0", 1, 5), one("rg_1", 0, 5), one("rg_2", 0, 4))
    seen = {(group.name, group.generation): group.members for group in records.groups}
    assert seen == {
        ("torchft/0", 5): (0, 2),
        ("torchft/0@4", 4): (0, 2, 4),
        ("torchft/1", 5): (1, 3),
        ("torchft/1@4", 4): (1, 3, 5),
    }
    assert all(group.inferred for group in records.groups)


def test_the_rank_beside_one_that_was_in_the_quorum_was_in_it_too() -> None:
    records = job(
        answer(call(1, 1, group="torchft", quorum=5), group="rg_0", torch=None),
        answer(call(1, 1, group="torchft", quorum=5), group="rg_1", rank=1, torch=None),
    )
    assert [group.members for group in records.groups] == [(0, 2), (1, 3)]


def test_sequences_that_begin_again_are_of_another_group() -> None:
    records = job(answer(call(1, 1), call(2, 2), call(3, 1, **INSIDE), torch=None))
    first, second, third = records.columns["group"].tolist()
    assert first == second != third


def test_a_work_that_nobody_waited_for_is_over_when_a_later_one_is() -> None:
    records = job(answer(call(1, 1, is_async=True, **INSIDE), call(2, 2),
                       call(3, 3, is_async=True, **INSIDE), torch=None))  # fmt: skip
    assert states(records) == ["completed", "completed", "unknown"]


def test_torchs_retired_entry_ends_a_work_that_nobody_waited_for() -> None:
    records = job(
        answer(call(1, 1, is_async=True, torch_ids=[0], **INSIDE), torch=gloo(entry(0, 1)))
    )
    assert states(records) == ["completed"]


def test_torchs_stamps_tell_when_the_ages_begin() -> None:
    records = job(answer(call(1, 1, enter_age_s=2.0, exit_age_s=1.5, torch_ids=[0]),
                       torch=gloo(entry(0, 1))))  # fmt: skip
    assert records.ranks[0].taken_ns == CREATED + 2_000_000_000
    assert rows(records, "created_ns", "completed_ns") == [(CREATED, CREATED + 500_000_000)]


def test_without_any_stamp_the_times_are_unknown_unless_the_caller_knows() -> None:
    record = parse_flight_record(answer(call(1, 1, enter_age_s=2.0), torch=None))
    records = from_answers([ring_rows.read_answer(record)])
    assert records.columns["created_ns"].tolist() == [-1]
    records = from_answers([ring_rows.read_answer(record, taken_ns=CREATED)])
    assert records.columns["created_ns"].tolist() == [CREATED - 2_000_000_000]


def test_torchs_part_that_cannot_be_read_is_a_problem_and_the_ring_counts() -> None:
    records = job(answer(call(), torch={"version": "2.10", "entries": 7}))
    assert len(records) == 1
    assert [problem.reason for problem in records.problems] == [
        "torch's part: entries are a list, not a int"
    ]


@pytest.mark.parametrize(
    "odd",
    [call(seq=1 << 62), call(id=1 << 62), call(enter_age_s=2e9), call(exit_age_s=2e9)],
    ids=["sequence", "id", "age", "age of the end"],
)
def test_numbers_that_no_program_has_raise_the_one_error(odd) -> None:
    with pytest.raises(FlightRecordError):
        job(answer(odd))


def test_a_world_without_end_raises_the_one_error() -> None:
    with pytest.raises(FlightRecordError, match="a world of"):
        job(answer(call(), size=1 << 18, members={}))


def test_an_answer_of_unfinished_calls_only_is_told_by_its_numbers() -> None:
    records = job(answer(call(7, 3, **INSIDE), call(9, 4, **INSIDE), torch=None))
    assert records.ranks[0].only_active


# -- several recorders --------------------------------------------------------------------------

REAL = Path(__file__).parents[3].parent / "shared/data/flight_recorder_nccl"


def recorders(**records):
    """By the names that torch's control plane knows them by."""
    return {name: {"record": record, "age_s": 0.1} for name, record in records.items()}


@pytest.mark.skipif(not REAL.exists(), reason="the real records lie beside the project")
@pytest.mark.parametrize(
    ("name", "kind"), [("gpu_error_2nd", Fault.GPU_BEHIND), ("lock_gil_1st", Fault.NOT_ENQUEUING)]
)
def test_nccls_records_are_diagnosed_live_as_they_are_from_dumps(name: str, kind: Fault) -> None:
    answers = []
    for path in (REAL / name).glob("_dump_*"):
        record = dict(dump.decode(path.read_bytes()))
        parts = recorders(dump_nccl_trace_json=record)
        answers.append(
            answer(rank=int(path.name[6:]), size=16, ring=[], members={}, recorders=parts,
                   torch={"version": "2.10", "pg_config": {}})
        )  # fmt: skip
    analysis = analyse(job(*answers))
    assert (analysis.culprits, {finding.kind for finding in analysis.findings}) == ((9, 14), {kind})


def test_each_recorder_counts_for_itself_and_gives_the_states_of_its_own_entries() -> None:
    calls = (
        call(1, 1, torch_ids=[0]),
        call(2, 1, group="fsdp", torch_ids=[0], recorder="dump_nccl_trace_json"),
    )
    parts = recorders(dump_nccl_trace_json=nccl(pending(0, 1, pg="7", desc="fsdp")))
    records = job(
        *(answer(*calls, rank=r, torch=gloo(entry(0, 1)), recorders=parts) for r in (0, 1))
    )
    group = [records.groups[at].name for at in records.columns["group"]]
    assert list(zip(group, states(records), strict=True)) == [
        ("default", "completed"), ("fsdp", "scheduled"),
    ] * 2  # fmt: skip


def test_a_group_that_two_backends_serve_is_two() -> None:
    parts = recorders(dump_nccl_trace_json=nccl(entry(0, 1), entry(1, 2)))
    records = job(*(
        answer(rank=r, ring=[], torch=gloo(entry(0, 1)), torch_only=[0], recorders=parts)
        for r in (0, 1)
    ))  # fmt: skip
    assert sorted(group.name for group in records.groups) == ["default", "default.nccl"]
    assert sorted(row for row in rows(records, "rank", "seq") if row[0] == 0) == [
        (0, 1), (0, 1), (0, 2),
    ]  # fmt: skip


def test_one_that_could_not_be_read_is_a_problem_and_the_others_count() -> None:
    parts = recorders(torchcomms_fr_trace_json={"entries": 3, "version": "2.10"})
    parts["dump_nccl_trace_json"] = {"error": "dump_nccl_trace_json: no answer within 2 s"}
    records = job(answer(recorders=parts))
    assert records.problems[0].reason == (
        "torch's part of torchcomms_fr_trace_json: entries are a list, not a int; "
        "dump_nccl_trace_json: no answer within 2 s"
    )
    assert len(records.columns["seq"]) == 3


def test_a_nameless_group_of_which_only_torch_knows_is_compared_with_nobody() -> None:
    """One of an old quorum, whose calls the ring has forgotten: ranks of a group are not in it
    together."""

    def of(number: int) -> dict:
        old = gloo(entry(0, 1, input_sizes=[[number]], output_sizes=[[number]], pg_id=5))
        old["entries"][0]["process_group"] = ["", ""]
        return old

    records = job(
        answer(call(2, 1), rank=0, torch=of(100)), answer(call(2, 1), rank=1, torch=of(200))
    )
    assert not analyse(records).findings
    nameless = {group.name for group in records.groups if group.name.startswith("unnamed")}
    assert nameless == {"unnamed 5 of rg_0.0", "unnamed 5 of rg_0.1"}
