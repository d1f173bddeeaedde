"""Survivors are asked to end their exchange; what they said is kept, whoever did not answer."""

from __future__ import annotations

from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.release import Releaser
from lightkeeper.monitor.model.eviction import Accused, Release
from lightkeeper.monitor.model.names import GroupName, IncidentId
from tests.monitor.doubles import HandClock
from tests.monitor.fakes import FakeFleet, FakeRank, wait_until


def order(*ranks: FakeRank, incarnation: str | None = None) -> Release:
    survivors = tuple(
        Accused(rank.identity.rank, incarnation or rank.identity.incarnation, rank.url)
        for rank in ranks
    )
    return Release(
        IncidentId("dead-1"), GroupName("rg_1"), 7, survivors, ("10.0.0.1",), "rg_1 is gone"
    )


def ended(releaser: Releaser) -> Release:
    finished: list[Release] = []
    wait_until(lambda: finished.extend(releaser.finished()) or finished, 10, "all have answered")
    assert not list(releaser.finished())
    return finished[0]


def test_every_survivor_is_asked_once_with_the_token_and_its_words_are_kept(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    fetcher.tokens = Tokens("secret")
    first, second = fleet.add("rg_0"), fleet.add("rg_2")
    clock = HandClock()
    releaser = Releaser(fetcher, clock)
    kept = releaser.begin(order(first, second), 3)
    assert (kept.state, kept.at_s, kept.epoch) == ("carried_out", clock.now_s(), 3)
    assert kept.addresses == ()  # thousands, that nobody reads again
    release = ended(releaser)
    assert (release.state, release.outcome) == (
        "confirmed", "rg_0.0 ended 2 connections; rg_2.0 ended 2 connections",
    )  # fmt: skip
    assert first.releases == [
        {
            "reason": "rg_1 is gone", "quorum_id": 7, "addresses": ["10.0.0.1"],
            "incarnation": first.identity.incarnation,
        }
    ]  # fmt: skip


def test_one_that_cannot_be_asked_does_not_hide_the_others(
    fleet: FakeFleet, fetcher: Fetcher
) -> None:
    fetcher.tokens = Tokens("secret")
    well, away = fleet.add("rg_0"), FakeRank(fleet.add("rg_2").identity, "http://127.0.0.1:1")
    releaser = Releaser(fetcher, HandClock())
    releaser.begin(order(well, away), 0)
    release = ended(releaser)
    assert release.state == "confirmed"
    assert release.outcome.startswith("rg_0.0 ended 2 connections; rg_2.0 ")


def test_where_nobody_obeys_it_has_failed(fleet: FakeFleet, fetcher: Fetcher) -> None:
    fetcher.tokens = Tokens("secret")
    releaser = Releaser(fetcher, HandClock())
    releaser.begin(order(fleet.add("rg_0"), incarnation="a later one"), 0)
    release = ended(releaser)
    assert (release.state, "another incarnation" in release.outcome) == ("failed", True)
