"""One look at everyone: whatever a target does, it costs nobody else anything."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Callable

import pytest

from lightkeeper.monitor.act import poller
from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from lightkeeper.worker_server.wire import FlightRecord, StateReport, to_json
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.fakes import FakeFleet, FakeRank, Page, identity, page

DEADLINE_S = 1.0


def hang(_: FakeRank):
    raise Hang


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bad(rank: FakeRank, **answer) -> None:
    for name, value in answer.items():
        setattr(rank, name, value)


BAD: dict[str, tuple[Callable[[FakeRank], None], Failure]] = {
    "hangs": (lambda r: bad(r, answer=hang), Failure.TIMEOUT),
    "drips a byte at a time": (lambda r: bad(r, drip=b"x"), Failure.TIMEOUT),
    "huge body": (lambda r: bad(r, answer=lambda _: page("x" * 1_000_000)), Failure.GARBAGE),
    "status 500": (lambda r: bad(r, answer=lambda _: page({}, 500)), Failure.HTTP),
    "redirects": (lambda r: bad(r, answer=lambda _: page({}, 302)), Failure.HTTP),
    "no JSON": (lambda r: bad(r, answer=lambda _: (200, "x", b"\xff{")), Failure.GARBAGE),
    "deep JSON": (lambda r: bad(r, answer=lambda _: (200, "x", b"[" * 60_000)), Failure.GARBAGE),
    "no schema": (lambda r: bad(r, answer=lambda _: page({"schema": 9})), Failure.GARBAGE),
    "a list": (lambda r: bad(r, answer=lambda _: page([])), Failure.GARBAGE),
    "another rank": (
        lambda r: bad(
            r, answer=lambda k: page(to_json(FakeRank(identity("rg_9"), k.base).report()))
        ),
        Failure.STRANGER,
    ),
}


def outcome(observation: Observation) -> Failure | str:
    match observation.outcome:
        case Unreachable():
            return observation.outcome.reason
        case StateReport():
            return "report"


def test_bad_targets_are_named_for_what_they_do_and_share_one_deadline(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    ranks = [fleet.add(f"rg_{number:02}") for number in range(len(BAD))]
    for rank, (spoil, _) in zip(ranks, BAD.values(), strict=True):
        spoil(rank)
    good = fleet.add("rg_99")
    began = time.monotonic()
    sweep = Poller(fetcher).sweep([rank.target() for rank in [*ranks, good]], deadline_s=DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S + 2.0
    assert [outcome(observation) for observation in sweep.observations] == [
        *(failure for _, failure in BAD.values()),
        "report",
    ]


@pytest.mark.parametrize(
    ("url", "failure"),
    [
        (lambda: f"http://127.0.0.1:{unused_port()}", Failure.REFUSED),
        (lambda: "http://no-such-host.invalid:1", Failure.UNRESOLVED),
    ],
    ids=["nobody listens", "a name without an address"],
)
def test_who_cannot_be_reached_is_named_for_why(url, failure: Failure, fetcher: Fetcher) -> None:
    away = Target(identity(), url(), 15.0, 0.0)
    sweep = Poller(fetcher).sweep([away], deadline_s=5.0)
    assert outcome(sweep.observations[0]) is failure


def test_what_is_seen_of_a_rank_says_who_brought_it(fleet: FakeFleet, fetcher: Fetcher) -> None:
    ranks = [
        replace(fleet.add(name).target(), bringer=by) for name, by in (("rg_0", "a"), ("rg_1", "b"))
    ]
    seen = Poller(fetcher).sweep(ranks, deadline_s=DEADLINE_S).observations
    assert [observation.bringer for observation in seen] == ["a", "b"]


def test_a_monitor_without_a_file_left_has_not_asked(fleet: FakeFleet, fetcher: Fetcher) -> None:
    rank = fleet.add("rg_0", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        (got,) = Poller(fetcher).sweep([rank.target()], deadline_s=2.0).observations
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert got.outcome == Unreachable(Failure.UNASKED, "this monitor: Too many open files")


def test_another_incarnation_at_the_same_url_is_a_stranger(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    rank = fleet.add()
    registered = rank.target()
    rank.restart("two")
    seen = Poller(fetcher).sweep([registered], deadline_s=DEADLINE_S).observations[0]
    assert seen.outcome == Unreachable(
        Failure.STRANGER, "another incarnation answers: rg_0.0 pid 4242 (two)"
    )
    assert seen.identity.incarnation == "one"


def test_a_rank_that_has_renamed_its_group_since_it_registered_is_no_stranger(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    rank = fleet.add()
    registered = rank.target()
    rank.identity = replace(rank.identity, group="train_0", launched_as="rg_0")
    seen = Poller(fetcher).sweep([registered], deadline_s=DEADLINE_S).observations[0]
    assert isinstance(seen.outcome, Unreachable)
    assert seen.outcome.reason is Failure.RENAMED


def test_flight_records_of_the_wanted_ranks_come_with_the_sweep(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    ranks = [fleet.add(f"rg_{number}") for number in range(3)]
    ranks[1].record = FlightRecord(identity("rg_7"), True, {}, (), 0, None)
    sweep = Poller(fetcher).sweep(
        [rank.target() for rank in ranks],
        deadline_s=DEADLINE_S,
        wanted=("rg_0.0", "rg_1.0", "rg_8.0", "rg_0.0"),
    )
    assert sweep.records["rg_0.0"] == FlightRecord(ranks[0].identity, True, {}, (), 0, None)
    assert sweep.records["rg_1.0"].reason is Failure.STRANGER
    assert sorted(sweep.records) == ["rg_0.0", "rg_1.0"]


def test_a_flight_record_that_is_late_comes_with_a_later_sweep_and_is_asked_for_once(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    rank, ready = fleet.add(), threading.Event()

    def slow(rank: FakeRank, _: str) -> Page:
        assert ready.wait(10)
        return page(to_json(FlightRecord(rank.identity, True, {}, (), 0, None)))

    fleet.serve_record = slow
    poller, name = Poller(fetcher), rank.identity.rank
    first = poller.sweep([rank.target()], deadline_s=0.2, wanted=(name,))
    assert (first.records, first.observations[0].outcome) == ({}, rank.report())
    assert not poller.sweep([rank.target()], deadline_s=0.2, wanted=(name,)).records
    ready.set()
    late = poller.sweep([rank.target()], deadline_s=3.0)
    assert isinstance(late.records[name], FlightRecord)
    assert late.asked_ago_s[name] > 0.2  # two sweeps of 0.2 s came before
    assert [path for path, _ in rank.asked].count("v1/flight_recorder") == 1
    # one of a process that is gone meanwhile is nobody's
    poller.sweep([rank.target()], deadline_s=0.0, wanted=(name,))
    rank.restart("another")
    assert not poller.sweep([rank.target()], deadline_s=3.0).records


def test_what_a_rank_says_survives_the_trip(fleet: FakeFleet, fetcher: Fetcher) -> None:
    rank = fleet.add(replica_id="rg_0:uuid", phase="communication", phase_age_s=7.5)
    seen = Poller(fetcher).sweep([rank.target()], deadline_s=DEADLINE_S).observations[0]
    assert seen.outcome == rank.report()
    assert json.loads(json.dumps(to_json(seen.outcome))) == to_json(rank.report())


def test_a_record_of_millions_of_empty_lists_is_not_unpacked(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    liar = fleet.add()
    liar.record = FlightRecord(liar.identity, True, {}, (), 0, {"x": [[]] * 600_000})
    sweep = Poller(fetcher).sweep([liar.target()], deadline_s=3.0, wanted=(liar.identity.rank,))
    record = sweep.records[liar.identity.rank]
    assert isinstance(record, Unreachable)
    assert (record.reason, "containers" in record.detail) == (Failure.GARBAGE, True)


def test_who_hangs_under_many_names_keeps_nobody_at_another_address_waiting(
    fleet: FakeFleet, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "_AT_ONCE", 4)
    hanging = [fleet.add(f"rg_{n}", host=f"h{n}", answer=hang).target() for n in range(8)]
    other = fleet.add("rg_9", host="h9").target()
    other = replace(other, url=other.url.replace("127.0.0.1", "localhost"))
    seen = Poller(fetcher).sweep([*hanging, other], deadline_s=DEADLINE_S).observations
    assert isinstance(seen[-1].outcome, StateReport)


def test_who_did_not_answer_just_now_gets_less_time_when_it_is_asked_again(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    """Somebody waits for a second look at a rank that may be gone."""
    well, away = fleet.add("rg_0"), fleet.add("rg_1")
    away.answer = hang
    poller = Poller(fetcher)
    targets = [well.target(), away.target()]
    looks = [poller.sweep(targets, deadline_s=1.0, again=again) for again in (True, True, False)]
    first_s, second_s, third_s = (look.observations[1].round_trip_s for look in looks)
    assert second_s < 0.75 * first_s
    assert third_s > 1.25 * second_s
    assert all(isinstance(look.observations[0].outcome, StateReport) for look in looks)
