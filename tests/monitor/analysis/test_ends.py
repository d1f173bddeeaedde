"""Records that are made to keep the analysis busy: it ends, and takes time by their size."""

import time
from dataclasses import replace

import pytest

from monitor.analysis.analyse import analyse
from monitor.flight_recorder import dump
from monitor.flight_recorder.assemble import Record, assemble
from tests.monitor.flight_recorder.dumps import CREATED, config, entry, nccl, pending

HOUR_NS = 3600 * 10**9


def judged(rows, ranks=3, **more):
    """Seconds that reading and judging take where each rank has these rows, or all but the last."""
    began_s = time.process_time()
    whole = dump.read(nccl(*rows, **more))
    less = dump.read(nccl(*rows[:-1], **more))
    job = assemble(Record(rank, less if rank else whole) for rank in range(ranks))
    infos = {rank: replace(info, taken_ns=CREATED + HOUR_NS) for rank, info in job.ranks.items()}
    analyse(replace(job, ranks=infos))
    return time.process_time() - began_s


def coalesced(n):
    return judged([pending(i, 1, profiling_name="nccl:coalesced") for i in range(n)])


def groups_of_one_name(n):
    rows = [entry(i, 1, process_group=("x", "same"), pg_id=i) for i in range(n)]
    return judged(rows)


def unfinished_groups(n):
    rows = [pending(i, 1, process_group=(f"g{i}", "d"), pg_id=i) for i in range(n)]
    return judged(rows, pg_config=config(**{f"g{i}": ("d", range(3)) for i in range(n)}))


def unknown_members(n):
    rows = [pending(i, 1, process_group=(f"g{i}", "d"), pg_id=i) for i in range(n)]
    return judged(rows, pg_config={})


@pytest.mark.parametrize(
    "case", [coalesced, groups_of_one_name, unfinished_groups, unknown_members]
)
def test_time_grows_with_size_and_not_with_its_square(case):
    case(50)  # what is imported and compiled at the first time
    small, large = case(1000), case(8000)
    assert large < 24 * small + 0.5  # 64 times for a square
