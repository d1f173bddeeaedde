"""Records that are made to keep the analysis busy: it ends, and takes time by their size."""

from dataclasses import replace

import pytest

from lightkeeper.monitor.records import divergence as witness
from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.divergence import Habit, habit
from lightkeeper.monitor.records.dump import Record, assemble
from lightkeeper.monitor.records.ring import newest_collectives
from lightkeeper.worker_server.wire import parse_flight_record
from tests.monitor.records.answers import answer, call
from tests.monitor.records.dumps import CREATED, config, entry, nccl, pending, send, status
from tests.timing import TIMES, cpu_s

HOUR_NS = 3600 * 10**9


def judged(rows, ranks=3, **more):
    """Seconds that reading and judging take where each rank has these rows, or all but the last."""

    def work():
        whole = dump.read_dump(nccl(*rows, **more))
        less = dump.read_dump(nccl(*rows[:-1], **more))
        judge(less if rank else whole for rank in range(ranks))

    return cpu_s(work)


def judge(dumps):
    job = assemble(Record(rank, dump) for rank, dump in enumerate(dumps))
    infos = {rank: replace(info, taken_ns=CREATED + HOUR_NS) for rank, info in job.ranks.items()}
    analyse(replace(job, ranks=infos))


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


def groups(n, size):
    return config(**{f"g{i}": ("d", range(size)) for i in range(n)})


def job(rows_of, ranks, **more):
    """The same where `rows_of` says what each rank has."""
    dumps = [nccl(*rows_of(rank), **more) for rank in range(ranks)]
    return cpu_s(lambda: judge(dump.read_dump(value) for value in dumps))


def ties_everywhere(n):
    """Half of the ranks against the other half in each group."""

    def rows(rank):
        shape = {"input_sizes": [[rank // 2 + 1]]}
        return [pending(i, 1, process_group=(f"g{i}", "d"), pg_id=i, **shape) for i in range(n)]

    return job(rows, ranks=4, pg_config=groups(n, 4))


def one_in_each_differs(n):
    def rows(rank):
        sizes = [[[(rank == i % 4) + 1]] for i in range(n)]
        return [
            pending(i, 1, process_group=(f"g{i}", "d"), pg_id=i, input_sizes=sizes[i])
            for i in range(n)
        ]

    return job(rows, ranks=4, pg_config=groups(n, 4))


def groups_between_groups(n):
    """Every second of them has entries, and every other a status."""
    rows = [entry(i, 1, process_group=(str(2 * i), "d"), pg_id=2 * i) for i in range(n // 2)]
    named = config(**{str(i): ("d", (0, 1)) for i in range(n)})
    heads = status(**{f"p{2 * i + 1}": (9, 9, 9) for i in range(n // 2)})
    return job(lambda _: rows, ranks=2, pg_config=named, pg_status=heads)


def many_groups_and_then_one(n):
    """A ring in which the last group begins anew with each call."""
    n *= 5
    of_many = [call(i + 1, 1, group=f"g{i}") for i in range(n // 2)]
    of_one = [call(n, 1, group="x")] * (n // 2)
    for row in (*of_many, *of_one):
        row.update(enter_age_s=2.0, exit_age_s=1.0)
    record = parse_flight_record(answer(*of_many, *of_one, torch=None))
    return cpu_s(lambda: newest_collectives(record))


def a_past_of_one_call(n):
    """Whether a call is usual: where all before it are the same, each stretch fits each other."""
    return cpu_s(lambda: habit([1] * n))


@pytest.mark.integration  # no processes, but 5 s of CPU
@pytest.mark.parametrize(
    ("case", "most"),
    [
        (coalesced, 1600), (groups_of_one_name, 1600), (unfinished_groups, 640),
        (unknown_members, 640), (ties_everywhere, 640), (one_in_each_differs, 640),
        (groups_between_groups, 1600), (many_groups_and_then_one, 1600),
        (a_past_of_one_call, 1600),
    ],
)  # fmt: skip
def test_time_grows_with_size_and_not_with_its_square(case, most):
    case(50)  # what is imported and compiled at the first time
    small, large = case(most // 4), case(most)
    assert large < 8 * small + 0.05  # 16 times for a square


@pytest.mark.integration  # no processes, but 1 s of CPU
def test_a_tie_is_asked_about_so_often_that_it_ends(monkeypatch):
    """Each look goes over the rank's past; all together over so much for each entry of the job."""
    looked = []
    monkeypatch.setattr(witness, "habit", lambda calls: (looked.append(len(calls)), Habit.USUAL)[1])
    monkeypatch.setattr(witness, "_LOOKS", (1 << 12, 16))
    for n in (64, 192):
        looked.clear()
        ties_everywhere(n)
        assert sum(looked) <= TIMES * ((1 << 12) + 16 * 4 * n + n)


def test_who_waits_is_counted_once_though_it_also_sends_to_somebody_unknown():
    """A send of which the peer is not recorded is no place at which the others wait."""
    rows = [send(i, i, "nccl:coalesced", op_id=i) for i in range(3)]
    dumps = [nccl(*rows, pending(9, 5)), nccl(pending(0, 5)), nccl(entry(0, 4))]
    records = assemble(Record(rank, dump.read_dump(value)) for rank, value in enumerate(dumps))
    infos = {
        rank: replace(info, taken_ns=CREATED + HOUR_NS) for rank, info in records.ranks.items()
    }
    said = " ".join(finding.reason for finding in analyse(replace(records, ranks=infos)).findings)
    assert "0, 0" not in said
    assert "0 and 0" not in said
