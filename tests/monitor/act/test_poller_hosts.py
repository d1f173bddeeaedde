"""One request a host: what a WorkerServer tells of its neighbours, and who is asked itself."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from lightkeeper.monitor.act import poller as polling
from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.poller import Poller, Sweep
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from lightkeeper.worker_server.wire import HostEntry, HostReport, StateReport, to_json
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.fakes import FakeFleet, FakeRank, page

DEADLINE_S = 2.0


def host_page(*knows: FakeRank):
    """What a WorkerServer says that knows these."""
    entries = tuple(HostEntry(rank.identity.rank, rank.url, rank.report()) for rank in knows)
    return page(to_json(HostReport(knows[0].identity.host, entries)))


class Eyes:
    """A poller, and who was asked what."""

    def __init__(self, fleet: FakeFleet, fetcher: Fetcher) -> None:
        self.fleet, self._poller = fleet, Poller(fetcher)

    def sweep(self, deadline_s: float = DEADLINE_S, **more) -> Sweep:
        for rank in self.fleet.ranks.values():
            rank.asked.clear()
        targets = [rank.target() for rank in self.fleet.ranks.values()]
        return self._poller.sweep(targets, deadline_s=deadline_s, **more)

    @property
    def asked(self) -> dict[str, int]:
        paths = (path for rank in self.fleet.ranks.values() for path, _ in rank.asked)
        return dict(Counter(path.partition("/")[2] for path in paths))

    def of(self, path: str) -> list[str]:
        asked_of = ((rank.identity.rank, path) for rank in self.fleet.ranks.values()
                for path, _ in rank.asked)  # fmt: skip
        return sorted(rank for rank, asked in asked_of if asked == f"v1/{path}")


@pytest.fixture
def eyes(fleet: FakeFleet, fetcher: Fetcher) -> Eyes:
    return Eyes(fleet, fetcher)


def add(fleet: FakeFleet, *numbers: int, host: str = "node0", **more) -> list[FakeRank]:
    return [fleet.add("rg_0", n, world_size=16, host=host, **more) for n in numbers]


def reports(sweep: Sweep) -> dict[str, bool]:
    return {
        observation.rank: isinstance(observation.outcome, StateReport)
        for observation in sweep.observations
    }


def test_one_worker_server_tells_of_all_ranks_of_its_host(fleet: FakeFleet, eyes: Eyes) -> None:
    ranks = add(fleet, 0, 1, 2) + add(fleet, 3, 4, host="node1")
    fleet.host_page = lambda asked: host_page(
        *(rank for rank in ranks if rank.identity.host == asked.identity.host)
    )
    for _ in range(2):
        sweep = eyes.sweep()
        assert all(reports(sweep).values())
        assert [observation.rank for observation in sweep.observations] == [
            f"rg_0.{n}" for n in range(5)
        ]
        assert [observation.url for observation in sweep.observations] == [
            rank.url for rank in ranks
        ]
        assert eyes.asked == {"host": 2}


def test_a_rank_alone_on_its_host_is_asked_itself(fleet: FakeFleet, eyes: Eyes) -> None:
    for n in range(3):
        add(fleet, n, host=f"node{n}")
    assert all(reports(eyes.sweep()).values())
    assert eyes.asked == {"state": 3}


def test_who_is_not_in_the_answer_is_asked_itself_and_speaks_for_the_rest_from_then_on(
    fleet: FakeFleet, eyes: Eyes
) -> None:
    """Two containers on one host, each with a run directory of its own."""
    first, second = add(fleet, 0, 1), add(fleet, 2, 3)
    fleet.host_page = lambda asked: host_page(*(first if asked in first else second))
    assert all(reports(eyes.sweep()).values())
    assert (eyes.of("host"), eyes.of("state")) == (["rg_0.0"], ["rg_0.2", "rg_0.3"])
    assert all(reports(eyes.sweep()).values())
    assert (eyes.of("host"), eyes.of("state")) == (["rg_0.0", "rg_0.2"], [])
    assert all(reports(eyes.sweep()).values())
    assert eyes.asked == {"host": 2}


def test_a_sweep_leaves_nothing_for_the_collector_of_cycles(fleet: FakeFleet, eyes: Eyes) -> None:
    """At 100,000 ranks it comes late, and each sweep that waits for it takes 200 MiB."""
    ranks = add(fleet, 0, 1, 2)
    fleet.host_page = lambda _: host_page(*ranks)
    gc.collect()
    gc.disable()
    try:
        sweep = eyes.sweep()
        assert all(reports(sweep).values())
        del sweep
        eyes.sweep(watched=["rg_0.1"])  # the event loop lets go of the one before
        kept = [item for item in gc.get_objects() if type(item) is Observation]
    finally:
        gc.enable()
    assert len(kept) <= len(ranks)


def hangs(_: FakeRank):
    raise Hang


@pytest.mark.parametrize(
    "answer",
    [
        hangs,
        lambda _: page({}, 404),
        lambda _: page({"schema": 1, "entries": 7}),
        lambda _: page([]),
        lambda rank: (200, "application/json", host_page(rank)[2] + b" " * 2**20),
    ],
    ids=["hangs", "has no such page", "garbage", "a list", "more than three ranks can say"],
)
def test_a_host_that_does_not_tell_costs_its_ranks_nothing(
    fleet: FakeFleet, eyes: Eyes, answer
) -> None:
    add(fleet, 0, 1, 2)
    fleet.host_page = answer
    assert all(reports(eyes.sweep()).values())
    assert eyes.of("state") == ["rg_0.0", "rg_0.1", "rg_0.2"]
    assert all(reports(eyes.sweep()).values())
    assert eyes.of("host") != ["rg_0.0"]  # another one is tried meanwhile


def test_a_watched_rank_is_asked_itself(fleet: FakeFleet, eyes: Eyes) -> None:
    ranks = add(fleet, 0, 1, 2)
    fleet.host_page = lambda _: host_page(*ranks)
    ranks[1].phase = "seen by its own"
    sweep = eyes.sweep(watched=[ranks[1].identity.rank])
    assert (eyes.of("host"), eyes.of("state")) == (["rg_0.0"], ["rg_0.1"])
    assert all(reports(sweep).values())


def test_another_life_of_a_rank_is_no_answer_for_it(fleet: FakeFleet, eyes: Eyes) -> None:
    ranks = add(fleet, 0, 1)
    other = replace(ranks[1], identity=replace(ranks[1].identity, incarnation="another"))
    fleet.host_page = lambda _: host_page(ranks[0], other)
    assert all(reports(eyes.sweep()).values())
    assert eyes.of("state") == ["rg_0.1"]


def test_nobody_speaks_for_a_host_at_another_address(fleet: FakeFleet, eyes: Eyes) -> None:
    """A rank says itself what its host is called: it might take that of another one."""
    liar, victim = add(fleet, 0, 1)
    liar.base = liar.base.replace("127.0.0.1", "localhost")
    lie = replace(victim, phase="never")
    fleet.host_page = lambda _: host_page(liar, lie)
    sweep = eyes.sweep()
    (_, second) = sweep.observations
    assert isinstance(second.outcome, StateReport)
    assert second.outcome.step is not None
    assert second.outcome.step.phase == "forward"
    assert eyes.asked == {"state": 2}


def test_a_rank_that_was_not_asked_for_lack_of_time_is_asked_first_in_the_next_sweep(
    fleet: FakeFleet, eyes: Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_AT_ONCE", 2)
    for n in range(4):
        add(fleet, n, host=f"node{n}", answer=hangs if n < 2 else None)
    first = eyes.sweep(0.4)
    why = {observation.rank: observation.outcome.reason for observation in first.observations
           if isinstance(observation.outcome, Unreachable)}  # fmt: skip
    assert why == {
        "rg_0.0": Failure.TIMEOUT, "rg_0.1": Failure.TIMEOUT,
        "rg_0.2": Failure.UNASKED, "rg_0.3": Failure.UNASKED,
    }  # fmt: skip
    for _ in range(3):  # who did not answer is asked last: it takes nobody's turn again
        assert reports(eyes.sweep(0.4)) == {
            "rg_0.0": False, "rg_0.1": False, "rg_0.2": True, "rg_0.3": True
        }  # fmt: skip
