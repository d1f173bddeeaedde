"""Slow ranks of jobs that report no phases: by heads at polls and flight records."""

import pytest

from lightkeeper.monitor.detect.arrivals import read_cohort
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import FlightRecord, RingEntry
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, cpu_stall, pause, slow, slow_link
from tests.monitor.records.dumps import entry, nccl

WATCHING = KeeperConfig(observe=True)


def attached(groups: int, size: int, *script, **options) -> SimFleet:
    return SimFleet(groups, size, script, source=None, across=True, **options)


def test_a_slow_rank_of_a_plain_job_is_named_by_its_records_until_it_keeps_pace() -> None:
    script = [at(40, slow("rg_0.2", 3.4)), at(100, slow("rg_0.2", 1.0))]
    drive = Drive(attached(1, 4, *script), WATCHING).run(165)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_0.2",)
    assert drive.fired[incident.id] == 82.0
    assert "comes late to the collectives of 'intra'" in incident.verdict.reason
    assert incident.verdict.evidence["source"].startswith("flight records, times of the calls")
    assert incident.verdict.victims == ("rg_0.0", "rg_0.1", "rg_0.3")
    assert incident.resolution == "keeps pace again"


def test_a_slow_group_of_one_rank_is_late_in_torchfts_group_and_evicted() -> None:
    drive = Drive(SimFleet(4, 1, [at(40, slow("rg_1.0", 3.4))], source="torchft", across=True))
    drive.run(140)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_1.0",)
    assert drive.evicted() == ["rg_1"]


def test_within_groups_the_rank_is_named_whose_peers_wait_inside() -> None:
    drive = Drive(attached(4, 2, at(40, slow("rg_1.1", 3.4))), WATCHING).run(160)
    assert drive.incident("straggler").culprits == ("rg_1.1",)


@pytest.mark.parametrize(
    ("groups", "size", "script"),
    [
        pytest.param(
            3, 2, [at(0, slow(f"rg_{n}.1", 3.4)) for n in range(3)], id="a slow last stage of each"
        ),
        pytest.param(1, 4, [at(40, slow_link("rg_0", 0.5))], id="slow transfers"),
        pytest.param(
            1, 4, [at(30 + 10 * n, cpu_stall("rg_0.1", 2.5)) for n in range(10)]
            + [at(140, pause(["rg_0.0"], "checkpoint", 4.0))], id="pauses",
        ),
    ],
)  # fmt: skip
def test_nobody_is_called_late_for(groups, size, script) -> None:
    assert not Drive(attached(groups, size, *script)).run(160).seen


def test_a_healthy_job_is_asked_for_no_records() -> None:
    drive = Drive(attached(1, 4, noise=0.3)).run(90)
    assert not any(result.wants_records for result in drive.results)


# -- the arithmetic ------------------------------------------------------------------------


def record(rank: int, busy_s: float, inside_s: float, steps: int = 40, **more) -> FlightRecord:
    """A rank that works, then is inside, again and again."""
    base = SimFleet(1, 4).snapshot().observations[rank].identity
    period_s = busy_s + inside_s
    entries = tuple(
        RingEntry(
            group="dp",
            seq=n + 1,
            op="all_reduce",
            enter_age_s=(steps - n - 1) * period_s + inside_s,
            exit_age_s=(steps - n - 1) * period_s,
            **more,
        )
        for n in range(steps)
    )
    return FlightRecord(base, True, {}, entries, 0, None)


def names(*records: FlightRecord) -> dict[RankName, FlightRecord]:
    return {record.identity.rank: record for record in records}


def test_busy_and_inside_are_each_ranks_own_and_p_tells_late_arrival() -> None:
    waiting = [record(rank, 0.1, 0.3) for rank in range(3)]
    reading = read_cohort(0.0, names(*waiting, record(3, 0.38, 0.02)))
    assert reading.arrivals["rg_0.3"].busy_s == pytest.approx(0.38)
    assert reading.arrivals["rg_0.3"].usual_s == pytest.approx(0.1)
    assert reading.arrivals["rg_0.0"].inside_s == pytest.approx(0.3)
    assert reading.period_s == pytest.approx(0.4)
    assert reading.late == pytest.approx(1.0)


def test_a_slow_transfer_has_nobody_late() -> None:
    assert read_cohort(0.0, names(*(record(rank, 0.1, 0.3) for rank in range(4)))).late is None


@pytest.mark.parametrize(
    "records",
    [
        [record(rank, 0.1, 0.3, is_async=True) for rank in range(4)],
        [record(0, 0.1, 0.3, steps=10), record(1, 0.1, 0.3)],
        [record(0, 0.1, 0.3)],
    ],
    ids=["asynchronous collectives, which say nothing", "too few in common", "one rank alone"],
)
def test_there_is_no_reading_of(records) -> None:
    assert read_cohort(0.0, names(*records)) is None


def by_nccl(record: FlightRecord) -> FlightRecord:
    """The same as NCCL's watchdog would have written it: times to 0.1 s."""
    rows = [
        entry(
            n, call.seq,
            time_discovered_started_ns=int(round(1000 - call.enter_age_s, 1) * 1e9),
            time_discovered_completed_ns=int(round(1000 - call.exit_age_s, 1) * 1e9),
        )
        for n, call in enumerate(record.ring)
    ]  # fmt: skip
    return replace(record, ring=(), torch=nccl(*rows))


def test_nccls_times_are_read_with_the_watchdogs_resolution() -> None:
    waiting = [by_nccl(record(rank, 0.5, 1.5)) for rank in range(3)]
    reading = read_cohort(0.0, names(*waiting, by_nccl(record(3, 1.9, 0.1))))
    assert reading.resolution_s == 0.1
    assert reading.arrivals["rg_0.3"].busy_s == pytest.approx(1.9, abs=0.11)
    assert reading.late == pytest.approx(1.0, abs=0.1)


def test_p_is_low_where_the_transfer_itself_is_slow_now_and_then() -> None:
    def mixed(rank: int) -> FlightRecord:
        """Every fourth transfer takes 0.5 s longer for all."""
        whole, ring, shift_s = record(rank, 0.1, 0.02), [], 0.0
        for call in reversed(whole.ring):
            longer_s = 0.5 if call.seq % 4 == 0 else 0.0
            enter_age_s = call.enter_age_s + shift_s + longer_s
            ring.append(
                replace(call, exit_age_s=call.exit_age_s + shift_s, enter_age_s=enter_age_s)
            )
            shift_s += longer_s
        return replace(whole, ring=tuple(reversed(ring)))

    assert read_cohort(0.0, names(*map(mixed, range(4)))).late == pytest.approx(0.0, abs=0.01)


def test_a_verdict_between_two_ranks_of_one_group_is_unsure() -> None:
    script = [at(40, slow("rg_0.2", 3.4)), at(40, slow("rg_0.3", 3.4))]
    drive = Drive(attached(1, 6, *script), WATCHING).run(140)
    incident = drive.incident("straggler")
    assert incident.candidates == ("rg_0.2", "rg_0.3")
    assert incident.verdict.confidence is Confidence.UNSURE
