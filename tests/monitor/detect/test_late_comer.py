"""Slow ranks of jobs that report no phases: by heads at polls and flight records."""

import pytest

from monitor.detect.arrivals import read
from monitor.model.config import KeeperConfig
from monitor.model.names import RankName
from monitor.model.verdict import Confidence
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, cpu_stall, pause, slow, slow_link
from worker_server.wire import FlightRecord, RingEntry

WATCHING = KeeperConfig(observe=True)


def attached(groups: int, size: int, *script, **options) -> SimFleet:
    return SimFleet(groups, size, script, source=None, across=True, **options)


def test_a_slow_rank_of_a_plain_job_is_named_by_its_records() -> None:
    drive = Drive(attached(1, 4, at(40, slow("rg_0.2", 3.4))), WATCHING).run(140)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_0.2",)
    assert drive.fired[incident.id] == 82.0
    assert "comes late to the collectives of 'intra'" in incident.verdict.reason
    assert incident.verdict.evidence["source"].startswith("flight records, times of the calls")
    assert incident.verdict.victims == ("rg_0.0", "rg_0.1", "rg_0.3")


def test_a_slow_group_of_one_rank_is_late_in_torchfts_group_and_evicted() -> None:
    drive = Drive(SimFleet(4, 1, [at(40, slow("rg_1.0", 3.4))], source="torchft", across=True))
    drive.run(140)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_1.0",)
    assert drive.evicted() == ["rg_1"]


def test_within_groups_the_rank_is_named_whose_peers_wait_inside() -> None:
    drive = Drive(attached(4, 2, at(40, slow("rg_1.1", 3.4))), WATCHING).run(160)
    assert drive.incident("straggler").culprits == ("rg_1.1",)


def test_a_slow_last_stage_of_every_group_is_no_fault() -> None:
    script = [at(0, slow(f"rg_{n}.1", 3.4)) for n in range(3)]
    assert not Drive(attached(3, 2, *script)).run(200).seen


def test_slow_transfers_and_pauses_accuse_no_rank() -> None:
    script = [at(40, slow_link("rg_0", 0.5))]
    script += [at(60 + 10 * n, cpu_stall("rg_0.1", 2.5)) for n in range(10)]
    script += [at(170, pause(["rg_0.0"], "checkpoint", 4.0))]
    assert not Drive(attached(1, 4, *script)).run(220).seen


def test_a_healthy_job_is_asked_for_no_records() -> None:
    drive = Drive(attached(1, 4, noise=0.3)).run(120)
    assert not any(result.wants_records for result in drive.results)


def test_a_rank_that_is_fast_again_keeps_pace_again() -> None:
    script = [at(40, slow("rg_0.2", 3.4)), at(100, slow("rg_0.2", 1.0))]
    drive = Drive(attached(1, 4, *script), WATCHING).run(200)
    assert drive.incident("straggler").resolution == "keeps pace again"


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
    return {one.identity.rank: one for one in records}


def test_busy_and_inside_are_each_ranks_own_and_p_tells_late_arrival() -> None:
    waiting = [record(rank, 0.1, 0.3) for rank in range(3)]
    reading = read(0.0, names(*waiting, record(3, 0.38, 0.02)))
    assert reading.arrivals["rg_0.3"].busy_s == pytest.approx(0.38)
    assert reading.arrivals["rg_0.3"].usual_s == pytest.approx(0.1)
    assert reading.arrivals["rg_0.0"].inside_s == pytest.approx(0.3)
    assert reading.period_s == pytest.approx(0.4)
    assert reading.late == pytest.approx(1.0)


def test_a_slow_transfer_has_nobody_late() -> None:
    reading = read(0.0, names(*(record(rank, 0.1, 0.3) for rank in range(4))))
    assert reading.late is None


def test_asynchronous_collectives_say_nothing_of_waiting() -> None:
    assert read(0.0, names(*(record(n, 0.1, 0.3, is_async=True) for n in range(4)))) is None


def test_too_few_common_collectives_are_no_reading() -> None:
    assert read(0.0, names(record(0, 0.1, 0.3, steps=10), record(1, 0.1, 0.3))) is None


def nccl(one: FlightRecord) -> FlightRecord:
    """The same as NCCL's watchdog would have written it: times to 0.1 s."""
    entries = [
        {
            "frames": [],
            "record_id": n,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": entry.seq,
            "p2p_seq_id": 0,
            "op_id": entry.seq,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": int((1000 - entry.enter_age_s) * 1e9),
            "time_discovered_started_ns": int(round(1000 - entry.enter_age_s, 1) * 1e9),
            "time_discovered_completed_ns": int(round(1000 - entry.exit_age_s, 1) * 1e9),
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4]],
            "output_dtypes": ["Float"],
            "state": "completed",
            "retired": True,
            "timeout_ms": 600000,
            "is_p2p": False,
        }
        for n, entry in enumerate(one.ring)
    ]
    torch = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {},
        "entries": entries,
    }
    return replace(one, ring=(), torch=torch)


def test_nccls_times_are_read_with_the_watchdogs_resolution() -> None:
    waiting = [nccl(record(rank, 0.5, 1.5)) for rank in range(3)]
    reading = read(0.0, names(*waiting, nccl(record(3, 1.9, 0.1))))
    assert reading.resolution_s == 0.1
    assert reading.arrivals["rg_0.3"].busy_s == pytest.approx(1.9, abs=0.11)
    assert reading.late == pytest.approx(1.0, abs=0.1)


def test_p_is_low_where_the_transfer_itself_is_slow_now_and_then() -> None:
    def mixed(rank: int) -> FlightRecord:
        one = record(rank, 0.1, 0.02, steps=40)
        ring = []
        shift_s = 0.0
        for entry in reversed(one.ring):  # every fourth transfer takes 0.5 s longer for all
            longer_s = 0.5 if entry.seq % 4 == 0 else 0.0
            ring.append(
                replace(
                    entry,
                    exit_age_s=entry.exit_age_s + shift_s,
                    enter_age_s=entry.enter_age_s + shift_s + longer_s,
                )
            )
            shift_s += longer_s
        return replace(one, ring=tuple(reversed(ring)))

    assert read(0.0, names(*map(mixed, range(4)))).late == pytest.approx(0.0, abs=0.01)


def test_a_verdict_between_two_ranks_of_one_group_is_unsure() -> None:
    script = [at(40, slow("rg_0.2", 3.4)), at(40, slow("rg_0.3", 3.4))]
    drive = Drive(attached(1, 6, *script), WATCHING).run(140)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_0.2", "rg_0.3")
    assert incident.verdict.confidence is Confidence.UNSURE
