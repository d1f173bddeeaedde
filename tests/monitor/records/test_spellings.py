"""What newer torch and its backends write, and older ones did not: one analysis reads them all."""

import json
import pickle

import pytest

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import Backend
from tests.monitor.records.dumps import config, entry, nccl, pending, send, status

WORLD = config(**{"0": ("default_pg", range(3))})


def write(folder, as_pickle=False, name="comm_lib_trace_rank_{}", **ranks):
    """Files as torch names them since 2.9."""
    for rank, said in ranks.items():
        path = folder / name.format(rank[1:])
        path.write_bytes(pickle.dumps(said, protocol=2) if as_pickle else json.dumps(said).encode())
    return load_job([folder])


def hung(*mine, head=(2, 2, 1), **changes):
    return nccl(*mine, pg_config=WORLD, pg_status=status(p0=head), **changes)


@pytest.mark.parametrize("as_pickle", [True, False])
@pytest.mark.parametrize(
    "recorded",
    ["nccl:all_reduce", "nccl2:all_reduce", "ncclx:all_reduce", "c10d:all_reduce",
     "nccl2:all_to_all_single", "c10d:all_to_all_single", "nccl2:reduce_scatter_tensor"],
)  # fmt: skip
def test_who_does_not_come_is_named_whoever_wrote_it(tmp_path, recorded, as_pickle):
    inside = hung(entry(0, 1, profiling_name=recorded), pending(1, 2, profiling_name=recorded))
    behind = hung(entry(0, 1, profiling_name=recorded), head=(1, 1, 1))
    records = write(tmp_path, as_pickle, r0=inside, r1=inside, r2=behind)
    assert not records.problems
    assert {info.backend for info in records.ranks.values()} == {Backend.NCCL}
    (finding,) = analyse(records).findings
    assert (finding.culprits, finding.victims) == ((2,), (0, 1))
    assert finding.kind in (Fault.NOT_ENTERED, Fault.NOT_ENQUEUING)


def test_spellings_of_one_operation_are_no_mismatch_and_pieces_may_be_uneven(tmp_path):
    """Torch 2.15 calls both kinds of all_to_all on one tensor `all_to_all_single`."""

    def one(name, given, got):
        return hung(
            entry(
                0, 1, profiling_name=f"nccl2:{name}", input_sizes=[[given]], output_sizes=[[got]]
            ),
            head=(1, 1, 1),
        )

    whole, base = one("all_to_all_single", 8, 6), one("alltoall_base", 4, 8)
    records = write(tmp_path, r0=whole, r1=base, r2=one("all_to_all_single", 6, 4))
    assert not analyse(records).findings


def test_a_receive_from_an_unknown_peer_waits_and_accuses_nobody(tmp_path):
    waits = hung(send(0, 1, "nccl2:recv 0<-?"), head=(1, 1, 0))
    others = hung(entry(0, 1), head=(1, 1, 1))
    records = write(tmp_path, r0=waits, r1=others, r2=others)
    assert not records.problems
    assert not analyse(records).culprits
    assert bool(records.columns["p2p"][records.columns["rank"] == 0].all())


def test_entries_that_do_not_say_whether_they_are_sends(tmp_path):
    def silent(row):
        return {key: value for key, value in row.items() if key != "is_p2p"}

    inside = hung(silent(entry(0, 1)), silent(pending(1, 2)))
    behind = hung(silent(entry(0, 1)), head=(1, 1, 1))
    records = write(tmp_path, r0=inside, r1=behind, r2=inside)
    assert analyse(records).culprits == (1,)


def test_the_dump_of_an_abort_keeps_what_was_under_way(tmp_path):
    """Aborted: its work is retired, and never completed."""
    aborted = hung(entry(0, 1), pending(1, 2, state="started", retired=True), head=(2, 2, 1))
    behind = hung(entry(0, 1), head=(1, 1, 1))
    records = write(tmp_path, True, r0=aborted, r1=aborted, r2=behind)
    (finding,) = analyse(records).findings
    assert finding.culprits == (2,)
