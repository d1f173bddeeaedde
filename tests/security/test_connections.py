"""A rank that lies about its connections and its host's addresses costs at most itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.detect.links import Links, addresses_of, links_of
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.observation import LighthouseView, Observation, Snapshot
from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.sidecar.host import share, with_shared
from lightkeeper.worker_server.wire import Connection, Trouble, WireError
from tests.changed import replace
from tests.monitor.detect.test_network import (
    ADDRESS,
    chain,
    inside,
    polled_by_address,
    slow,
    stand,
    unacknowledged,
)
from tests.monitor.fleet import Drive, SimFleet, at, hang, silent
from tests.monitor.fleet.told import Alter, reports
from tests.worker_server.boxes import CONNECTIONS, FakeBox

ROW = ["10.0.0.1:1", "10.0.0.2:2", "unacknowledged", 9.0, "across", 192, 4]
ODD_ROWS: dict[str, Any] = {
    "ten thousand rows": [ROW] * 10**4,
    "one too many": [ROW] * 9,
    "no number": [[*ROW[:3], math.nan]],
    "no end": [[*ROW[:3], math.inf]],
    "before it began": [[*ROW[:3], -1.0]],
    "a huge time": [[*ROW[:3], 1e300]],
    "a huge count": [[*ROW[:5], 10**30]],
    "a negative count": [[*ROW[:5], -1]],
    "a text for a number": [[*ROW[:3], "9"]],
    "a long address": [["1" * 65, *ROW[1:]]],
    "a huge use": [[*ROW[:4], "x" * 10**6]],
    "no peer": [ROW[:1]],
    "no rows": "10.0.0.1:1",
}


def answer(**changes: Any) -> dict[str, Any]:
    return {**wire.to_json(FakeBox().state()), **changes}


# -- what the wire refuses ------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ODD_ROWS.values(), ids=ODD_ROWS)
def test_rows_that_are_too_many_too_long_or_no_numbers_are_refused(rows: Any) -> None:
    with pytest.raises(WireError):
        wire.parse_state(answer(connections=rows))


@pytest.mark.parametrize("text", ["10.0.0.1\x1b[2J:1", "10.0.0.1:1\n", "a b:1", "\u202e:1", "\0"])
def test_nothing_that_moves_a_terminal_is_an_address(text: str) -> None:
    for lie in ({"connections": [[text, *ROW[1:]]]}, {"connections": [[ROW[0], text]]},
                {"addresses": [text]}):  # fmt: skip
        with pytest.raises(WireError):
            wire.parse_state(answer(**lie))


@pytest.mark.parametrize("addresses", [["10.0.0.1"] * 9, ["x" * 65], [1], "10.0.0.1", [None]])
def test_addresses_are_few_short_and_texts(addresses: Any) -> None:
    with pytest.raises(WireError):
        wire.parse_state(answer(addresses=addresses))


def test_a_trouble_that_is_not_known_is_none() -> None:
    (row,) = wire.parse_state(answer(connections=[[*ROW[:2], "blames rg_1"]])).connections
    assert row.trouble is Trouble.NONE


def test_a_neighbours_file_that_lies_costs_its_own_rows(tmp_path: Path) -> None:
    path, report = tmp_path / "a.seen", FakeBox().state()
    assert share(path, report, 100.0)
    plain = replace(report, connections=())
    later = with_shared(path, plain, 103.0).connections
    assert later == tuple(row.later(3.0) for row in CONNECTIONS)
    assert with_shared(path, plain, 200.0).connections == ()  # too old
    content = json.loads(path.read_text())
    content["report"]["connections"] = [[*ROW[:3], -1.0]]
    run_dir.write_json(path, content)
    assert with_shared(path, plain, 103.0) == plain


# -- whose address it is --------------------------------------------------------------------------


def track(
    host: str, number: int, polled: str, *said: str, rows: tuple[Connection, ...] = ()
) -> Any:
    identity = replace(FakeBox().identity, host=wire.Host(host), group=wire.GroupName(f"g{number}"))
    report = replace(FakeBox().state(), identity=identity, addresses=said, connections=rows)
    made = RankTrack(identity, 0.0, 0.0, report=report)
    made.see(Observation(identity, f"http://{polled}:8000", report, 0.01))
    return made


def links_to(address: str, *others: RankTrack) -> Links:
    """As a rank on host `a` sees it, which gets no answer from there."""
    row = Connection("10.9.9.9:1", f"{address}:2", Trouble.UNANSWERED, 60.0)
    return links_of([track("a", 0, "10.0.0.1", rows=(row,)), *others])


def test_an_address_that_two_hosts_claim_is_nobodys() -> None:
    innocent, liar = track("b", 1, "10.0.0.2", "10.1.0.2"), track("c", 2, "10.0.0.3", "10.1.0.2")
    assert [edge.peer for edge in links_to("10.1.0.2", innocent).edges] == ["b"]
    assert [edge.peer for edge in links_to("10.1.0.2", innocent, liar).edges] == [None]
    assert not links_to("10.1.0.2", innocent, liar).by_hosts


def test_the_address_by_which_the_monitor_reaches_a_host_is_not_taken_over() -> None:
    innocent, liar = track("b", 1, "10.0.0.2"), track("c", 2, "10.0.0.3", "10.0.0.2")
    assert [edge.peer for edge in links_to("10.0.0.2", innocent, liar).edges] == ["b"]
    assert [edge.peer for edge in links_to("10.0.0.3", innocent, liar).edges] == ["c"]


def test_behind_one_address_for_several_hosts_nothing_is_concluded_whoever_claims_it() -> None:
    shared = [track("b", 1, "10.0.0.2"), track("c", 2, "10.0.0.2")]
    liar = track("d", 3, "10.0.0.4", "10.0.0.2")
    for others in (shared, [*shared, liar]):
        assert [edge.peer for edge in links_to("10.0.0.2", *others).edges] == [None]


def test_no_claim_takes_an_address_out_of_the_order_to_release() -> None:
    innocent, liar = track("b", 1, "10.0.0.2", "10.1.0.2"), track("c", 2, "10.0.0.3", "10.1.0.2")
    assert {"10.0.0.2", "10.1.0.2", "127.0.0.1"} <= set(addresses_of([innocent, liar]))


def test_a_link_is_broken_only_where_both_ends_say_so_for_long() -> None:
    def end(of: str, number: int, to: str, for_s: float) -> RankTrack:
        row = Connection("10.9.9.9:1", f"{to}:2", Trouble.UNACKNOWLEDGED, for_s)
        return track(of, number, f"10.0.0.{number}", rows=(row,))

    a, b = end("a", 1, "10.0.0.2", 60.0), end("b", 2, "10.0.0.1", 8.0)
    assert list(links_of([a, b]).confirmed(7.0)) == [("a", "b")]
    assert not links_of([a, b]).confirmed(9.0)
    assert not links_of([a, track("b", 2, "10.0.0.2")]).confirmed(0.0)


# -- whom it accuses ------------------------------------------------------------------------------


LIAR = "rg_3.0"
INNOCENT = ("rg_0.0", "rg_1.0", "rg_2.0")


def of_four(*alters: Alter, script: tuple[Any, ...] = ()) -> Drive:
    fleet = SimFleet(4, 1, list(script))
    for rank in fleet.ranks():
        rank.host = f"node-{rank.group}"
    return Drive(fleet, alter=chain(polled_by_address, inside, *alters))


def claims(*addresses: str) -> Alter:
    return reports(lambda report: replace(report, addresses=addresses), LIAR)


def accused(drive: Drive) -> set[str]:
    return drive.accused() | {rank for _, evict in drive.evicts for rank in evict.group}


@pytest.mark.parametrize(
    "alters",
    [
        pytest.param((unacknowledged(LIAR, *INNOCENT),), id="broken"),
        pytest.param((slow(LIAR, *INNOCENT), unacknowledged(LIAR, *INNOCENT)), id="broken after"),
        pytest.param((slow("rg_0.0", "rg_1.0", busy=0.4), slow(LIAR, "rg_1.0")), id="slow"),
        pytest.param(
            (claims(*(ADDRESS[rank] for rank in INNOCENT)), unacknowledged(LIAR, *INNOCENT)),
            id="with their addresses",
        ),
    ],
)
def test_who_says_that_all_others_are_away_accuses_nobody(alters: tuple[Alter, ...]) -> None:
    drive = of_four(*alters).run(60)
    assert not drive.accused() & set(INNOCENT)
    assert not drive.evicts
    drive = of_four(stand(*INNOCENT, LIAR), *alters).run(35)
    assert not drive.accused() & set(INNOCENT)
    assert not [evict for _, evict in drive.evicts if evict.group != "rg_3"]


def test_a_liar_beside_a_hang_shields_and_accuses_nobody() -> None:
    drive = of_four(unacknowledged(LIAR, "rg_0.0", "rg_2.0"), script=(at(20, hang("rg_1.0")),))
    drive.run(45)
    assert drive.accused() == {"rg_1.0"}
    assert [evict.group for _, evict in drive.evicts] == ["rg_1"]


def test_who_calls_its_host_by_anothers_name_is_named_alone() -> None:
    """It lets others' packets fall, and they say so."""
    others = ("rg_1.0", "rg_2.0")
    drive = of_four(
        stand(*INNOCENT, LIAR),
        unacknowledged(LIAR, *others),
        *(unacknowledged(rank, LIAR) for rank in others),
    )
    drive.fleet.rank(LIAR).host = "node-rg_0"
    drive.run(32)
    assert drive.incident("deadlock").culprits == (LIAR,)
    assert {evict.group for _, evict in drive.evicts} <= {"rg_3"}


def test_who_calls_its_slow_host_by_anothers_name_is_named_alone() -> None:
    drive = of_four(slow(LIAR, "rg_1.0", "rg_2.0"))
    drive.fleet.rank(LIAR).host = "node-rg_0"
    drive.run(60)
    assert drive.accused() <= {LIAR}
    assert {evict.group for _, evict in drive.evicts} <= {"rg_3"}


def test_an_age_that_one_end_alone_says_dates_nothing() -> None:
    def ages(report: wire.StateReport) -> wire.StateReport:
        return replace(
            report, connections=tuple(replace(row, for_s=1e10) for row in report.connections)
        )

    drive = of_four(
        stand(*INNOCENT, LIAR), unacknowledged("rg_1.0", LIAR), unacknowledged(LIAR, "rg_1.0"),
        reports(ages, LIAR),
    ).run(32)  # fmt: skip
    incident = drive.incident("deadlock")
    assert drive.last.now_s - incident.verdict.since_s < 20


def hears(group: str) -> Alter:
    """The Lighthouse hears this group."""

    def alter(seen: Snapshot) -> Snapshot:
        assert isinstance(seen.lighthouse, LighthouseView)
        ages = {
            name: 0.1 if name.startswith(group) else age_s
            for name, age_s in seen.lighthouse.heartbeat_ages_s.items()
        }
        return replace(seen, lighthouse=replace(seen.lighthouse, heartbeat_ages_s=ages))

    return alter


def unheard(group: str) -> Alter:
    """The Lighthouse does not."""

    def alter(seen: Snapshot) -> Snapshot:
        view = seen.lighthouse
        assert isinstance(view, LighthouseView)
        ages = {
            name: max(age_s, 60.0) if name.startswith(group) else age_s
            for name, age_s in view.heartbeat_ages_s.items()
        }
        expired = frozenset(name for name in ages if name.startswith(group))
        return replace(seen, lighthouse=replace(view, heartbeat_ages_s=ages, expired=expired))

    return alter


LIES = tuple(unacknowledged(rank, "rg_1.0", since=0) for rank in ("rg_0.0", "rg_2.0", LIAR))


def test_all_others_lies_lose_no_host_that_the_lighthouse_hears() -> None:
    drive = of_four(hears("rg_1"), *LIES, script=(at(20, silent("rg_1.0", 300.0)),)).run(60)
    assert "rg_1.0" not in drive.accused()
    assert not drive.evicts


def test_all_others_lies_lose_no_host_that_the_monitor_hears() -> None:
    drive = of_four(unheard("rg_1"), *LIES).run(60)
    assert "dead" not in drive.kinds()
    assert not drive.evicts
