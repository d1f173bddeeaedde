"""Pages as values: what is text, what travels when something changes, what stays bounded."""

from __future__ import annotations

import json

import pytest

from monitor.lease import Standing
from monitor.names import GroupName
from monitor.pages import Context, Place, make, news, state_of_all, whole
from monitor.pages.context import FLEET, GROUPS
from monitor.pages.grid import LINKS
from monitor.pages.tree import el, to_html, to_wire
from monitor.pages.wording import ago, natural, span
from monitor.pipeline import RankHealth
from tests.page.views import crowd

STALLED = {"rg_1.1": RankHealth.STALLED}


def fleet(view, *, by_host: bool = False, **more):
    return make(Context(view, Place(FLEET, by_host=by_host), **more))


def changes(before, after) -> dict:
    return json.loads(f"{{{news(before, after)}}}")


def test_text_and_attributes_are_escaped_and_travel_as_they_are() -> None:
    node = el("a", "<b>&", None, title='"x"', hidden=None, disabled=True, class_="y")
    assert to_html(node) == ('<a title="&quot;x&quot;" disabled="" class="y">&lt;b&gt;&amp;</a>')
    assert to_wire(node) == ["a", {"title": '"x"', "disabled": "", "class": "y"}, "<b>&"]


def test_what_turns_text_around_is_left_out() -> None:
    assert to_wire(el("p", "a\u202eb\x07c")) == ["p", {}, "abc"]


def test_a_tick_in_which_only_the_step_moved_changes_no_cell() -> None:
    before, after = fleet(crowd(125, 8)), fleet(crowd(125, 8, tick=101))
    told = changes(before, after)
    assert list(told["parts"]) == ["pulse"]
    assert told["items"] == {}
    assert "order" not in told
    assert len(news(before, after)) < 2000


def test_one_sick_rank_changes_one_cell() -> None:
    told = changes(fleet(crowd(125, 8)), fleet(crowd(125, 8, STALLED, tick=101)))
    assert list(told["items"]) == ["rg_1"]
    assert sorted(told["parts"]) == ["attention", "fleet", "pulse"]


def test_a_group_that_leaves_and_one_that_comes_are_told_by_the_new_order() -> None:
    before = fleet(crowd(0, 60, names=["rg_1", "rg_2"]))
    told = changes(before, fleet(crowd(0, 60, names=["rg_10", "rg_2"])))
    assert (list(told["items"]), told["order"]) == (["rg_10"], ["rg_2", "rg_10"])


def test_the_whole_state_holds_every_part_and_item_in_order() -> None:
    page = fleet(crowd(12, 8))
    told = json.loads(f"{{{state_of_all(page)}}}")
    assert told["order"] == list(told["items"]) == [f"rg_{n}" for n in range(12)]
    assert told["facts"]["ranks"] == {"healthy": 96}
    assert set(told["parts"]) == {"banners", *(one.attributes["id"] for one in page.parts)}


def test_ten_thousand_healthy_ranks_are_some_twelve_hundred_cells() -> None:
    page = fleet(crowd(1250, 8))
    html = whole(page, "/", "t", 1.0)
    assert html.count("<li") < 1300
    assert len(html) < 400_000


def test_links_of_sick_ranks_are_bounded_and_the_worst_have_theirs() -> None:
    sick = {f"rg_{n}.{r}": RankHealth.UNREACHABLE for n in range(100) for r in range(8)}
    sick["rg_99.7"] = RankHealth.DEAD
    cells = "".join(to_html(one) for one in fleet(crowd(125, 8, sick)).items.values())
    assert cells.count('<a href="/ranks/') == LINKS
    assert 'href="/ranks/rg_99.7"' in cells


def test_a_fleet_by_host_has_a_cell_for_each_host() -> None:
    page = fleet(crowd(10, 8, hosts_a_group=2), by_host=True)
    assert len(page.items) == 20
    assert "node-rg_3-1" in page.items


@pytest.mark.parametrize(
    ("age_s", "said"),
    [
        (0.6, "Training, all 8 ranks well"),
        (5.4, "Training, the next commit is late"),
        (60.0, "Stalling, verdict pending"),
    ],
)
def test_who_has_not_committed_for_long_is_not_said_to_train(age_s: float, said: str) -> None:
    view = crowd(4, 2)
    for seen in view.snapshot.observations:
        object.__setattr__(seen.outcome.step, "last_commit_age_s", age_s)
    assert fleet(view).facts["headline"] == said


def test_the_sick_one_stays_in_sight_while_its_group_is_put_out() -> None:
    view = crowd(2, 2, STALLED, evicting=frozenset({GroupName("rg_1")}))
    (attention,) = [one for one in fleet(view).parts if one.attributes.get("id") == "attention"]
    assert "rg_1.1" in to_html(attention)
    assert "rg_1.0" not in to_html(attention)


def test_of_ranks_that_report_no_steps_nobody_says_that_they_train() -> None:
    view = crowd(2, 2)
    for seen in view.snapshot.observations:
        object.__setattr__(seen.outcome, "step", None)
    assert fleet(view).facts["headline"] == "No steps are reported"
    assert "rg_1.1" in whole(fleet(view), "/", "t", 1.0)


def test_without_ranks_the_page_says_how_to_start_some() -> None:
    page = fleet(crowd(0, 1))
    assert page.facts["headline"] == "Waiting for ranks"
    assert "LIGHTKEEPER_MONITOR" in whole(page, "/", "t", 1.0)


def test_a_standby_links_to_the_active_monitor_by_http_only() -> None:
    for url, linked in (("http://head2:8470", True), ("javascript:alert(1)", False)):
        standing = Standing(False, 1, "head2", url, None)
        html = whole(fleet(crowd(1, 1, standing=standing)), "/", "t", 1.0)
        assert (f'href="{url}"' in html) is linked
        assert "stands by" in html


def test_places_have_paths_and_are_found_by_them() -> None:
    for place in (Place(FLEET), Place(FLEET, by_host=True), Place(GROUPS, "a/b c?#%")):
        assert Place.of(place.path) == place
    for path in ("/groups/", "/nothing/x", "/groups/a/b", "/groups/" + "x" * 500):
        assert Place.of(path) is None


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["rg_10", "rg_2", "a", "rg_2b", "2"], key=natural) == [
        "2", "a", "rg_2", "rg_2b", "rg_10",
    ]  # fmt: skip


def test_times_are_put_as_people_say_them() -> None:
    assert [span(one) for one in (None, 0.44, 43.2, 700, 9000, 400_000, float("nan"))] == [
        "\N{EN DASH}", "0.4 s", "43 s", "12 min", "2 h", "5 days", "\N{EN DASH}",
    ]  # fmt: skip
    assert [ago(one) for one in (3, 100, 9000)] == ["just now", "60 s ago", "2 h ago"]


def test_what_stands_beside_a_link_keeps_its_distance() -> None:
    html = whole(fleet(crowd(1, 1)), "/", "t", 1.0)
    assert "</a> · heartbeat 0.3 s ago</p>" in html
