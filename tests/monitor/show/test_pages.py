"""Pages as values: what is text, what changes with a tick, what stays bounded."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError

from lightkeeper.monitor.decide.headline import headline_of
from lightkeeper.monitor.detect.links import Edge, Links
from lightkeeper.monitor.model.eviction import QuarantineEntry
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE, LighthouseAway, Pause
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.model.units import natural, span
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.templating import attributes, environment
from lightkeeper.monitor.show.web import pages
from lightkeeper.monitor.show.web.pages import (
    CELLS,
    FLEET,
    GROUPS,
    HOSTS,
    LINKS,
    RANKS,
    Context,
    PagePlace,
    make,
)
from lightkeeper.monitor.store.lease import LeaseStanding
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.wire import Connection, Trouble
from tests.changed import replace
from tests.page.parts import html_of, parts_of
from tests.page.views import NOW_S, crowd

STALLED = {"rg_1.1": RankHealth.STALLED}


def fleet(view, *, by_host: bool = False, **more):
    return make(Context(view, PagePlace(FLEET, by_host=by_host), **more))


def cells(page) -> dict[str, str]:
    """Name -> markup, in their order."""
    grid = parts_of(page)["fleet"].partition('<ul id="grid"')[2].rpartition("</ul>")[0]
    return {re.search('data-key="([^"]*)"', cell)[1]: cell for cell in grid.split("<li ")[1:]}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name, markup in after.items() if before.get(name) != markup]


def test_text_and_attributes_are_escaped() -> None:
    given = environment().from_string(
        "<a{{ attributes(title=text, hidden=none, class_=text) }}>{{ text }}"
    )
    assert given.render(text='<b>&"') == (
        '<a title="&lt;b&gt;&amp;&#34;" class="&lt;b&gt;&amp;&#34;">&lt;b&gt;&amp;&#34;'
    )
    assert attributes(disabled=True, hidden=False, data_key=None) == ' disabled=""'


def test_what_turns_text_around_is_left_out() -> None:
    assert environment().from_string("{{ text }}").render(text="a\u202eb\x07c") == "abc"


def test_what_a_template_does_not_know_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nothing_of_the_kind }}").render()


def test_a_tick_in_which_only_the_step_moved_changes_no_cell() -> None:
    before, after = fleet(crowd(125, 8)), fleet(crowd(125, 8, tick=101))
    assert changed(parts_of(before), parts_of(after)) == ["pulse"]


def test_one_sick_rank_changes_one_cell() -> None:
    before, after = fleet(crowd(125, 8)), fleet(crowd(125, 8, STALLED, tick=101))
    assert changed(cells(before), cells(after)) == ["rg_1"]
    assert changed(parts_of(before), parts_of(after)) == ["pulse", "attention", "fleet"]


def test_a_page_holds_every_part_and_cell_in_order() -> None:
    page = fleet(crowd(12, 8))
    assert list(cells(page)) == [f"rg_{n}" for n in range(12)]
    assert list(parts_of(page)) == [
        "chips",
        "pulse",
        "banners",
        "attention",
        "incidents",
        "trend",
        "tempo",
        "quarantine",
        "fleet",
        "acts",
        "policy",
    ]


def test_ten_thousand_healthy_ranks_are_some_twelve_hundred_cells() -> None:
    page = fleet(crowd(1250, 8))
    html = html_of(page)
    assert html.count("<li") < 1300
    assert len(html) < 400_000


def test_of_a_fleet_too_large_for_cells_the_odd_ones_have_one_and_the_others_are_counted() -> None:
    sick = {"rg_7.0": RankHealth.STALLED, "rg_2600.0": RankHealth.WAITING}
    page = fleet(crowd(CELLS + 200, 1, sick))
    assert list(cells(page)) == ["rg_7", "rg_2600"]
    assert "And 2,698 groups more" in parts_of(page)["fleet"]
    everybody = fleet(crowd(CELLS + 200, 1, rest=RankHealth.WAITING))
    assert len(cells(everybody)) == CELLS
    assert "And 200 groups more" in parts_of(everybody)["fleet"]


def test_links_of_sick_ranks_are_bounded_and_the_worst_have_theirs() -> None:
    sick = {f"rg_{n}.{r}": RankHealth.UNREACHABLE for n in range(100) for r in range(8)}
    sick["rg_99.7"] = RankHealth.DEAD
    grid = "".join(cells(fleet(crowd(125, 8, sick))).values())
    assert grid.count('<a href="/ranks/') == LINKS
    assert 'href="/ranks/rg_99.7"' in grid


def test_a_fleet_by_host_has_a_cell_for_each_host() -> None:
    page = fleet(crowd(10, 8, hosts_a_group=2), by_host=True)
    assert len(cells(page)) == 20
    assert "node-rg_3-1" in cells(page)


def test_the_sick_one_stays_in_sight_while_its_group_is_put_out() -> None:
    view = crowd(2, 2, STALLED, evicting=frozenset({GroupName("rg_1")}))
    attention = parts_of(fleet(view))["attention"]
    assert "rg_1.1" in attention
    assert "rg_1.0" not in attention


def test_without_ranks_the_page_says_how_to_start_some() -> None:
    page = fleet(crowd(0, 1))
    assert 'data-state="waiting"' in parts_of(page)["pulse"]
    assert "LIGHTKEEPER_MONITOR" in html_of(page)


def test_a_standby_links_to_the_active_monitor_by_http_only() -> None:
    for url, linked in (("http://head2:8470", True), ("javascript:alert(1)", False)):
        standing = LeaseStanding(False, 1, "head2", url, None)
        html = html_of(fleet(crowd(1, 1, standing=standing)))
        assert (f'href="{url}"' in html) is linked
        assert "stands by" in html


def test_who_cannot_write_is_not_said_to_stand_by_for_itself() -> None:
    standing = LeaseStanding(False, 1, "here", None, None, "the store /m.db takes no writes")
    html = html_of(fleet(crowd(1, 1, standing=standing)))
    assert "may not act now" in html
    assert "he store /m.db takes no writes" in html
    assert "stands by" not in html
    assert "here is active" not in html


NO_LIGHTHOUSE_HERE = LighthouseAway(NO_LIGHTHOUSE)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, []),
        ({"lighthouse": NO_LIGHTHOUSE_HERE, "tokenless": True}, ["watch-only"]),
        ({"lighthouse": NO_LIGHTHOUSE_HERE}, ["watch-only"]),
        ({"tokenless": True, "observe": True}, ["no token", "observe mode"]),
    ],
    ids=["nothing", "watch-only", "no Lighthouse", "no token, observe"],
)
def test_what_holds_and_is_no_fault_is_a_word_in_the_header_and_no_banner(more, words) -> None:
    page = fleet(crowd(2, 2, **more))
    assert re.findall(r"<summary[^>]*>([^<]+)<", parts_of(page)["chips"]) == words
    assert parts_of(page)["banners"] == '<div id="banners"></div>'
    html = html_of(page)
    assert html.index('id="chips"') < html.index("</header>") < html.index('id="headline"')


@pytest.mark.parametrize(
    "place",
    [
        PagePlace(FLEET),
        PagePlace(FLEET, by_host=True),
        PagePlace(GROUPS, "rg_0"),
        PagePlace(RANKS, "rg_0.0"),
    ],
    ids=str,
)
def test_without_a_lighthouse_no_part_speaks_of_quorum_pause_or_policy(place: PagePlace) -> None:
    view = crowd(1, 2, lighthouse=NO_LIGHTHOUSE_HERE)
    page = make(Context(view, place))
    shown = "".join(parts_of(page).values()).lower()
    assert [word for word in ("quorum", "heartbeat", "pause") if word in shown] == []
    assert "policy" not in parts_of(page)


@pytest.mark.parametrize(
    ("groups", "button"), [(1, "End the job"), (2, "Evict this group")], ids=["only", "of two"]
)
def test_the_button_of_the_only_group_ends_the_job(groups: int, button: str) -> None:
    page = make(Context(crowd(groups, 2), PagePlace(GROUPS, "rg_0")))
    assert re.findall(r"<button[^>]*>((?:End|Evict)[^<]*)<", parts_of(page)["acts"]) == [button]
    assert ("Ends the job: rg_0 is its only group." in parts_of(page)["acts"]) is (groups == 1)


def test_a_pause_can_be_lifted_without_a_lighthouse_too() -> None:
    pause = Pause("rack 7", "ann", NOW_S, None)
    page = fleet(crowd(1, 2, lighthouse=NO_LIGHTHOUSE_HERE, pause=pause))
    assert "Resume evictions" in parts_of(page)["acts"]


def test_parts_with_nothing_to_say_are_words_of_one_line() -> None:
    page = fleet(crowd(2, 2))
    assert [parts_of(page)[name] for name in ("attention", "incidents", "quarantine")] == [
        '<section id="attention" class="quiet">No rank is sick. </section>',
        '<section id="incidents" class="quiet">No incident so far.</section>',
        '<section id="quarantine" class="quiet">Nothing is quarantined.</section>',
    ]


@pytest.mark.parametrize("then", ["It is evicted in 2 s", "Stop the job. Start the Lighthouse."])
def test_what_happens_next_ends_with_one_full_stop(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = headline_of(crowd(2, 2))
    monkeypatch.setattr(pages, "headline_of", lambda _: replace(calm, next=then))
    html = html_of(fleet(crowd(2, 2)))
    assert f'<p id="next">{then.removesuffix(".")}. ' in html


def test_the_job_is_named_in_the_header() -> None:
    link = '<a href="/runs" class="job" title="the job: its runs">job</a>'
    assert link in html_of(fleet(crowd(1, 1)))


def test_a_page_of_64_ranks_stays_under_200_kb() -> None:
    sick = {f"rg_{n}.0": RankHealth.STALLED for n in range(8)}
    points = [TrendPoint(NOW_S + 10.0 * n, 0.3, 3.3, 1.1) for n in range(-350, 10)]
    for size in (6, 8):  # cards of 48, cells of 64
        html = html_of(fleet(crowd(8, size, sick, trend={"1h": points})))
        assert 60_000 < len(html.encode()) < 110_000


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["rg_10", "rg_2", "a", "rg_2b", "2"], key=natural) == [
        "2", "a", "rg_2", "rg_2b", "rg_10",
    ]  # fmt: skip


def test_times_are_put_as_people_say_them() -> None:
    assert [span(seconds) for seconds in (None, 0.44, 43.2, 700, 9000, 400_000, float("nan"))] == [
        "\N{EN DASH}", "0.4 s", "43 s", "12 min", "2 h", "5 days", "\N{EN DASH}",
    ]  # fmt: skip


def test_what_stands_beside_a_link_keeps_its_distance() -> None:
    html = html_of(fleet(crowd(1, 1)))
    assert "</a> · heartbeat 0.3 s ago</p>" in html


@pytest.mark.parametrize("size", [1, 40], ids=["cards", "cells"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(FLEET, ""), (FLEET, "by host"), (GROUPS, "{}"), (HOSTS, "node-{}-0"), (RANKS, "{}.0")],
)
def test_hostile_names_are_text_on_every_page(kind: str, name: str, size: int) -> None:
    evil = "<img/src=x onerror=alert(1)>\"'&\u202e"
    view = crowd(
        2, size, {f"{evil}.0": RankHealth.DEAD}, names=["rg_0", evil], troubles=(evil,),
        quarantine=(QuarantineEntry(evil, evil, evil, NOW_S, None, None, note=evil),),
        pause=Pause(evil, evil, NOW_S, None), unknown={evil: evil},
    )  # fmt: skip
    place = PagePlace(kind, name.format(evil), by_host=name == "by host")
    page = make(Context(view, place, why_not=evil))
    assert page.status == 200
    assert "<img/" not in html_of(page)
    assert "\u202e" not in html_of(page)
    assert "&lt;img/src=x onerror=alert(1)&gt;&#34;&#39;&amp;" in html_of(page)


ODD = (
    Connection("10.0.0.1:4", "10.0.0.2:5", Trouble.UNACKNOWLEDGED, 6.0, "across", 96, 4),
    Connection("10.0.0.1:7", "10.0.0.9:29510", Trouble.UNANSWERED, 3.0, "lighthouse", retries=2),
)


def network(*edges: Edge, **more) -> str | None:
    view = crowd(2, 1)
    view = replace(view, result=replace(view.result, links=Links(edges)))
    parts = parts_of(make(Context(view, PagePlace("ranks", "rg_0.0"), **more)))
    return parts.get("network")


def test_a_rank_says_what_is_odd_of_its_connections_and_leads_to_all_of_them() -> None:
    rank, host = RankName("rg_0.0"), Host("node-0")
    edges = (Edge(rank, host, Host("node-1"), ODD[0]), Edge(rank, host, None, ODD[1]))
    shown = network(*edges, Edge(RankName("rg_1.0"), host, None, ODD[1]))
    assert shown is not None
    said = re.findall("<li>(.*?)</li>", shown)
    assert said == [
        (
            "rg_0.0 has sent 96 bytes to node-1 (10.0.0.2) and nobody has acknowledged them for "
            "6.0 s, 4 retries"
        ),
        "The lighthouse at 10.0.0.9:29510 does not answer rg_0.0 for 3.0 s, 2 retries",
    ]
    assert 'href="/ranks/rg_0.0?show=network"' in shown
    assert "<a " not in str(network(*edges, guarded=True))


def test_a_rank_whose_connections_are_well_has_no_word_of_them() -> None:
    assert network() is None


# -- what a machine says ---------------------------------------------------------------------------

XID = wire.Testimony(
    "kernel log", wire.Weight.BROKEN, "xid-79", "GPU 3: Xid 79, <fallen> off the bus", 4.0, 90.0,
    "GPU 3",
)  # fmt: skip


def machine_of(*rows: wire.Testimony, testified: tuple[str, ...] = ()) -> str:
    view = crowd(2, 1)
    host = view.snapshot.observations[0].identity.host
    snapshot = replace(view.snapshot, cluster={host: rows})
    view = replace(view, snapshot=snapshot, hosts={host: HostRecord(host, testified=testified)})
    return parts_of(make(Context(view, PagePlace("hosts", host))))["machine"]


def test_a_hosts_page_has_what_its_machine_says_and_said() -> None:
    section = machine_of(XID, testified=("GPU 1: Xid 48",))
    assert "GPU 3: Xid 79, &lt;fallen&gt; off the bus" in section
    assert "At an earlier fault: GPU 1: Xid 48" in section


def test_a_host_without_a_word_against_it_says_so() -> None:
    assert "Its machine says nothing bad." in machine_of()


def test_ranks_of_one_host_that_say_the_same_are_one_row() -> None:
    view = crowd(1, 2)
    said = [
        replace(each, outcome=replace(each.report, machine=(XID.later(float(n)),)))
        for n, each in enumerate(view.snapshot.observations)
    ]
    snapshot = replace(view.snapshot, observations=tuple(said))
    assert [len(rows) for rows in snapshot.machines.values()] == [1] * len(snapshot.machines)
