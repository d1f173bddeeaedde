"""The pages of one group, host and rank, and what a person does from them."""

from __future__ import annotations

import re

import pytest

from lightkeeper.monitor.model.eviction import QuarantineEntry, Scope
from lightkeeper.monitor.model.names import Host
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.store.lease import LeaseStanding
from tests.changed import replace
from tests.monitor.fleet import SimFleet, at, stop
from tests.page.browsing import PHONE, assert_accessible, assert_fits, live
from tests.page.views import NOW_S, Simulated, crowd

pytestmark = pytest.mark.integration

SICK = {"rg_1.1": RankHealth.DEAD}


@pytest.fixture(scope="module")
def faulty():
    return Simulated(SimFleet(3, 2, [at(30, stop("rg_1.0"))])).run(37)


def facts(page) -> dict[str, str]:
    names, values = page.locator("#about dt").all(), page.locator("#about dd").all()
    return {a.inner_text(): b.inner_text() for a, b in zip(names, values, strict=True)}


# -- what they say --------------------------------------------------------------------------------


def test_a_group_tells_its_ranks_and_its_incidents(stage, opened, faulty) -> None:
    page = opened.open(stage(faulty).url + "/groups/rg_1", java_script_enabled=False)
    assert page.inner_text("h1").split()[:3] == ["Replica", "group", "rg_1"]
    about = facts(page)
    assert (about["in the quorum"], about["hosts"]) == ("no", "host-rg_1")
    assert page.locator('#ranks a[href="/ranks/rg_1.0"]').count() == 1
    assert page.locator('#ranks a[href="/ranks/rg_1.0?show=stacks"]').count() == 1
    (incident,) = [item for item in faulty.incidents if "rg_1" in item.groups]
    assert page.locator(f'#incidents a[href="/incidents/{incident.id}"]').count() == 1
    page.get_by_text("From a shell").click()
    shell = page.inner_text("#acts")
    assert "lightkeeper evict rg_1 " in shell
    assert "lightkeeper quarantine add --group rg_1 " in shell
    page.set_viewport_size(PHONE)
    assert_fits(page)


def test_a_host_tells_its_record_and_its_history(stage, opened) -> None:
    host = Host("node-rg_1-0")
    record = HostRecord(host, incidents={"dead": 3}, wide=2, quarantines=4, lemon="four in 28 d")
    monitor = stage(crowd(3, 2, SICK, hosts={host: record}))
    monitor.quarantine.add(QuarantineEntry(host, "ECC errors", "ann", NOW_S, None, None))
    page = opened.open(monitor.url + f"/hosts/{host}")
    about = facts(page)
    assert about["lemon"] == "four in 28 d"
    assert (about["accused of"], about["runs"]) == ("dead 3", "rg_1")
    assert "ECC errors" in page.inner_text("#history")
    assert page.locator("#ranks tbody tr").count() == 2
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    assert_fits(page)


def test_a_rank_tells_what_it_does_and_where_its_time_went(stage, opened, faulty) -> None:
    monitor = stage(faulty)
    page = opened.open(monitor.url + "/ranks/rg_1.0", scheme="dark")
    about = facts(page)
    assert (about["group"], about["host"]) == ("rg_1", "host-rg_1")
    assert about["process"] == "T: stopped by a signal"
    assert "forward" in page.inner_text("#phases")
    assert "all_reduce" in page.inner_text("#heads") or "all_gather" in page.inner_text("#heads")
    links = page.eval_on_selector_all(
        "#sources a", "all => all.map((one) => one.pathname + one.search)"
    )
    assert links == [
        f"/ranks/rg_1.0?show={page}"
        for page in ("state", "steps", "flight_recorder", "stacks", "last_words", "network")
    ]
    assert "hang" in page.inner_text("#incidents")
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    assert_fits(page)
    page.locator("#sources a").nth(1).click()
    assert "gave no answer" in page.inner_text("#says .banner")  # there is no such process
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("link", name="rg_1.0", exact=True).click()
    page.wait_for_selector("#about")


def test_a_rank_that_is_gone_keeps_its_incidents(stage, faulty) -> None:
    seen = tuple(
        observation
        for observation in faulty.snapshot.observations
        if observation.identity.group != "rg_1"
    )
    view = replace(faulty, snapshot=replace(faulty.snapshot, observations=seen))
    html = stage(view).app.test_client().get("/ranks/rg_1.0").text
    assert "not registered" in html.partition("<h1")[2].partition("</h1>")[0]
    assert "hang" in html.partition('id="incidents"')[2]


def test_pages_of_one_follow_too(stage, opened) -> None:
    monitor = stage(crowd(1, 2))
    page = opened.open(monitor.url + "/ranks/rg_1.1")
    live(page)
    assert "is known" in page.inner_text("#about")
    monitor.show(crowd(3, 2, SICK, tick=101))
    page.wait_for_selector("h1 .chip:text('dead')")
    assert "SIGKILL" in page.inner_text("#about")


# -- what a person does ---------------------------------------------------------------------------


def test_an_eviction_is_typed_reasoned_and_needs_the_right_token(stage, opened) -> None:
    monitor = stage(crowd(3, 2))
    page = opened.open(monitor.url + "/groups/rg_1")
    page.get_by_role("button", name="Evict this group").click()
    deed = page.get_by_role("dialog")
    said = deed.inner_text()
    assert "ends its 2 ranks on node-rg_1-0" in said
    assert "2 other groups can continue" in said
    go = deed.get_by_role("button", name="Evict this group")
    deed.get_by_label("Why").fill("moving it")
    deed.get_by_label("The monitor's token").fill("wrong")
    assert go.is_disabled()
    deed.get_by_label("Type rg_1 to confirm").fill("rg_2")
    assert go.is_disabled()
    deed.get_by_label("Type rg_1 to confirm").fill("rg_1")
    assert_accessible(page)
    go.click()
    page.wait_for_selector(".answer.bad:text('wrong or missing token')")
    assert monitor.evicted == []
    deed.get_by_label("The monitor's token").fill("secret")
    go.click()
    page.wait_for_selector(".answer.good:text('Done.')")
    assert monitor.evicted == [("rg_1", "moving it", "a person")]
    assert page.locator('.answer a[href="/incidents/by_hand-rg_1-1"]').count() == 1
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0
    assert "secret" not in page.url
    deed.get_by_role("button", name="Close").click()
    assert page.evaluate("document.activeElement.innerText") == "Evict this group"
    page.get_by_role("button", name="Quarantine this group").click()
    deed = page.get_by_role("dialog")
    deed.get_by_label("Why").fill("bad shard")
    deed.get_by_label("The monitor's token").fill("secret")
    deed.get_by_role("button", name="Quarantine this group").click()
    page.wait_for_selector(".answer.good")
    (entry,) = monitor.quarantine.groups()
    assert (entry.name, entry.scope, entry.until_s) == ("rg_1", Scope.GROUP, None)


def test_a_host_is_quarantined_for_a_time_and_released(stage, opened) -> None:
    monitor = stage(crowd(2, 1))
    page = opened.open(monitor.url + "/hosts/node-rg_1-0")
    page.get_by_role("button", name="Quarantine this host").click()
    deed = page.get_by_role("dialog")
    deed.get_by_label("Why").fill("ECC")
    deed.get_by_label("For how many hours").fill("2")
    deed.get_by_label("Your name").fill("ann")
    deed.get_by_label("The monitor's token").fill("secret")
    deed.get_by_label("Keep the token").check()
    deed.get_by_role("button", name="Quarantine this host").click()
    page.wait_for_selector(".answer.good")
    (entry,) = monitor.quarantine.active()
    assert (entry.name, entry.author, entry.reason) == ("node-rg_1-0", "ann", "ECC")
    assert entry.until_s == monitor.clock.now_s() + 7200
    deed.get_by_role("button", name="Close").click()
    monitor.show(crowd(2, 1, tick=101, quarantine=monitor.quarantine.active()))
    page.get_by_role("button", name="Release from quarantine").click()
    deed = page.get_by_role("dialog")
    assert "which ann quarantined: ECC" in deed.inner_text()
    assert deed.get_by_label("The monitor's token").input_value() == "secret"  # kept for this tab
    deed.get_by_label("Why").fill("DIMM changed")
    deed.get_by_role("button", name="Release from quarantine").click()
    page.wait_for_selector(".answer.good:text('may come back')")
    assert monitor.quarantine.active() == ()


def test_evictions_are_paused_and_resumed(stage, opened) -> None:
    monitor = stage(crowd(2, 1))
    page = opened.open(monitor.url)
    live(page)
    page.get_by_role("button", name="Pause evictions").click()
    deed = page.get_by_role("dialog")
    deed.get_by_label("Why").fill("firmware")
    deed.get_by_label("The monitor's token").fill("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer.good")
    pause = monitor.pause.current()
    assert pause is not None
    assert pause.reason == "firmware"
    deed.get_by_role("button", name="Close").click()
    monitor.show(crowd(2, 1, tick=101, pause=Pause("firmware", "ann", NOW_S, None)))
    page.get_by_role("button", name="Resume evictions").click()
    page.get_by_role("dialog").get_by_label("The monitor's token").fill("secret")
    page.get_by_role("dialog").get_by_role("button", name="Resume evictions").click()
    page.wait_for_selector(".answer.good")
    assert monitor.pause.current() is None


STANDBY = LeaseStanding(False, 3, "head2", "http://head2:8470", NOW_S)


@pytest.mark.parametrize(
    ("desk", "why"),
    [({"token": None}, "no token is configured"),
     ({"standing": lambda: STANDBY}, "this monitor stands by: head2 is active")],
    ids=["no token", "standby"],
)  # fmt: skip
def test_what_cannot_be_done_from_here_says_why(stage, desk: dict, why: str) -> None:
    view = crowd(2, 1, standing=STANDBY if "standing" in desk else None)
    html = stage(view, **desk).app.test_client().get("/groups/rg_1").text
    buttons = re.findall("<button([^>]*)>([^<]*this group)", html)
    assert ["disabled" in attributes for attributes, _ in buttons] == [True, True]
    assert why in html.partition('id="acts-why"')[2].partition("</p>")[0]
