"""The page of the fleet in a browser: without a script, live, away and back."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.eviction import QuarantineEntry
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.model.verdict import RankHealth
from tests.changed import replace
from tests.monitor.fleet import SimFleet, at, stop
from tests.page.browsing import PHONE, WIDE, assert_accessible, assert_fits, live, timed
from tests.page.views import NOW_S, Simulated, crowd

pytestmark = pytest.mark.integration

SICK = {
    "rg_0.0": RankHealth.STALLED,
    "rg_0.1": RankHealth.WAITING,
    "rg_1.0": RankHealth.DEAD,
    "rg_1.1": RankHealth.UNREACHABLE,
}
HOSTILE = "<img/src=x/onerror=alert(1)>&quot;"


def texts(page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


@pytest.fixture(scope="module")
def faulty():
    """A real story: a rank stops, its group is evicted and comes back, another stops."""
    return Simulated(SimFleet(4, 2, [at(30, stop("rg_1.0")), at(75, stop("rg_2.1"))])).run(82)


# -- without a script ----------------------------------------------------------------------------


def test_without_javascript_the_page_says_everything(stage, opened, faulty) -> None:
    entry = QuarantineEntry("node9", "ECC errors", "ann", NOW_S, None, None)
    view = replace(faulty, quarantine=(entry,), observe=True)
    page = opened.open(stage(view).url, java_script_enabled=False)
    body = page.inner_text("body")
    assert page.inner_text("#headline").startswith("Not training: rank rg_2.1 is stopped by")
    for said in ("observe mode", "ECC errors", "Who needs attention", "rg_2.1", "stalled",
                 "229", "never below 1 group",
                 "/step, busy"):  # fmt: skip
        assert said in body, said
    firing = next(incident for incident in view.incidents if incident.state is State.FIRING)
    assert page.locator(f'#incidents a[href="/incidents/{firing.id}"]').count() == 1
    assert page.locator('#attention a[href="/ranks/rg_2.1"]').count() == 1
    assert page.locator('a[href="/ranks/rg_2.1?show=stacks"]').count() > 0
    assert page.locator("button:visible").count() == 0  # nothing that would do nothing
    page.get_by_text("From a shell").click()
    assert "lightkeeper pause" in page.inner_text("#acts")


def test_without_javascript_a_thousand_ranks_are_a_grid_with_links(stage, opened) -> None:
    page = opened.open(stage(crowd(125, 8, SICK)).url, java_script_enabled=False)
    assert page.locator("#grid > li").count() == 125
    assert page.get_attribute('#grid a[href="/groups/rg_0"]', "aria-label") == (
        "rg_0, 8 ranks: 6 healthy, 1 waiting, 1 stalled"
    )
    linked = page.eval_on_selector_all("#grid a.g", "all => all.map((one) => one.pathname)")
    assert linked == ["/ranks/rg_0.0", "/ranks/rg_1.0", "/ranks/rg_1.1"]
    page.get_by_role("link", name="host", exact=True).click()
    page.wait_for_url("**/?by=host")
    assert page.locator("#grid > li").count() == 125
    assert page.locator('#grid a[href="/hosts/node-rg_1-0"]').count() == 1


def test_banners_and_words_of_the_header_say_what_a_person_must_know_first(stage, opened) -> None:
    view = crowd(
        2, 1, pause=Pause("switch firmware", "ann", NOW_S, None), observe=True,
        troubles=("the store cannot be written",), unknown={"straggler": "detector crashed"},
    )  # fmt: skip
    page = opened.open(stage(view).url, width=390)
    assert texts(page, "#banners .banner") == [
        "Paused by ann until a person resumes: switch firmware. Nobody is evicted but by hand.",
        "Nobody looks for straggler: detector crashed. Such a fault may be there.",
        "The store cannot be written",
    ]
    assert page.inner_text("#headline") == "Training, but nobody looks for straggler"
    page.get_by_text("observe mode").click()
    assert page.inner_text("#chips p:visible") == (
        "The monitor says whom it would evict, and evicts nobody."
    )
    assert_fits(page)
    assert_accessible(page)


def test_before_the_first_tick_the_page_waits_for_it(stage, opened) -> None:
    monitor = stage(None)
    page = opened.open(monitor.url)
    assert page.inner_text("h1") == "Starting"
    monitor.show(crowd(1, 1))
    page.wait_for_selector("#headline")


# -- live ----------------------------------------------------------------------------------------


def test_changes_arrive_by_themselves_and_change_nothing_else(stage, opened) -> None:
    monitor = stage(crowd(125, 8))
    page = opened.open(monitor.url)
    live(page)
    assert page.inner_text("#headline") == "Training: all 1,000 ranks are healthy"
    page.evaluate(
        """() => {
          window.touched = new Set();
          new MutationObserver((all) => {
            for (const one of all) {
              const item = one.target.closest?.("li[data-key]");
              if (item) window.touched.add(item.dataset.key);
            }
          }).observe(document.getElementById("grid"),
                     { subtree: true, childList: true, attributes: true });
        }"""
    )
    monitor.show(crowd(125, 8, SICK, tick=101))
    page.wait_for_selector("#headline:text('3 ranks are unhealthy')")
    assert page.evaluate("[...window.touched].sort()") == ["rg_0", "rg_1"]
    assert page.inner_text("#figures").split()[1] == "1,101"
    assert texts(page, "#attention tbody tr td:first-child") == ["rg_1.0", "rg_1.1", "rg_0.0"]
    assert page.title() == "Training, but 3 ranks are unhealthy · lightkeeper"
    # who holds the keyboard keeps it
    page.locator("details.policy summary").click()
    page.locator('#attention a[href="/ranks/rg_0.0"]').focus()
    monitor.show(crowd(125, 8, {"rg_0.0": RankHealth.STALLED}, tick=102))  # two rows above it go
    page.wait_for_selector("#headline:text('1 rank is unhealthy')")
    assert page.evaluate("document.activeElement.pathname") == "/ranks/rg_0.0"
    assert page.locator("details.policy").get_attribute("open") is not None
    # groups come and go
    monitor.show(crowd(0, 20, names=["rg_10", "rg_2", "rg_0"], tick=103))
    page.wait_for_selector("#headline:text('all 60 ranks are healthy')")
    assert page.eval_on_selector_all("#grid > li", "all => all.map((one) => one.dataset.key)") == [
        "rg_0", "rg_2", "rg_10",
    ]  # fmt: skip


def test_the_script_draws_what_the_server_writes_with_times_in_the_zone_of_the_reader(
    stage, opened, faulty
) -> None:
    monitor = stage(crowd(4, 2))
    page = opened.open(monitor.url)
    live(page)
    monitor.show(faulty)
    page.wait_for_selector("#headline b:text('Not training')")
    time = page.locator("#incidents time").first
    utc = "1970-01-12 13:48:00 UTC"
    assert (time.inner_text(), time.get_attribute("title")) == ("1970-01-12 22:48:00 GMT+9", utc)
    drawn = page.inner_text("main")
    page.reload()
    live(page)
    assert page.inner_text("main") == drawn
    assert time.get_attribute("title") == utc
    page.get_by_role("button", name="Times: local").click()
    assert time.inner_text() == utc
    firing = next(incident for incident in faulty.incidents if incident.open)
    page.goto(f"{monitor.url}/incidents/{firing.id}")  # the browser keeps what was chosen
    live(page)
    assert " UTC" in page.inner_text("#story")
    page.get_by_role("button", name="Times: UTC").click()
    assert "UTC" not in page.inner_text("main")
    assert_fits(page)
    page.set_viewport_size(PHONE)
    assert_fits(page)


def test_the_pace_has_an_axis_values_under_the_pointer_and_three_spans(
    stage, opened, faulty
) -> None:
    now_s = faulty.snapshot.now_s
    hour = [TrendPoint(now_s - 10.0 * n, 0.5, 2.0, 2.0) for n in reversed(range(20))]
    day = [TrendPoint(now_s - 300.0 * n, None, 1.5, 0.0) for n in reversed(range(20))]
    view = replace(faulty, trend={"1h": hour, "24h": day})
    page = opened.open(stage(view).url)
    live(page)
    assert page.inner_text("#trend .top") == "2 a second"
    assert len(texts(page, "#trend .ticks time")) == 6
    assert page.locator("#trend .marks a").count() == 2
    for size in (WIDE, PHONE):
        page.set_viewport_size(size)
        page.locator("#trend .hit").nth(118).hover()
        assert page.inner_text("#trend .readout") == "1970-01-12 22:47:30 GMT+9: 2 steps a second"
        page.locator("#trend .hit").nth(3).dispatch_event("pointerdown")  # a finger
        assert page.inner_text("#trend .readout").endswith(": not seen")
        assert_fits(page)
    page.get_by_role("link", name="24 h").click()
    page.wait_for_url("**span=24h")
    assert "at the lowest 0" in page.locator("#trend .hit title").last.text_content()
    page.get_by_role("link", name="7 days").click()
    page.get_by_text("Nothing is known of this time yet.").wait_for()
    assert_fits(page)


def test_a_monitor_that_is_away_is_told_and_found_again(stage, opened) -> None:
    monitor = stage(crowd(2, 2), tick_s=0.2)
    page = opened.open(monitor.url)
    live(page)
    monitor.close()
    page.wait_for_selector("#away .banner:text('Monitor away since')")
    assert "stale" in page.get_attribute("body", "class")
    stage(crowd(2, 2, SICK, tick=500), port=monitor.port, tick_s=0.2)
    page.wait_for_selector("#headline:text('3 ranks are unhealthy')", timeout=30_000)
    assert page.locator("#away .banner").count() == 0
    assert "stale" not in page.get_attribute("body", "class")


def test_a_hidden_page_asks_nothing_until_it_is_looked_at(stage, opened) -> None:
    monitor = stage(crowd(2, 2))
    page = timed(opened, monitor.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def hide(hidden: bool) -> None:
        page.evaluate(
            """(hidden) => {
              Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )

    hide(True)
    monitor.show(crowd(2, 2, SICK, tick=101))
    page.clock.run_for(60_000)
    page.evaluate("() => fetch('/healthz').then((answer) => answer.ok)")  # goes behind all others
    assert [url for url in asked if not url.endswith(".svg")] == [f"{monitor.url}/healthz"]
    hide(False)
    page.wait_for_selector("#headline:text('3 ranks are unhealthy')")


def test_hostile_names_stay_text(stage, opened) -> None:
    view = crowd(2, 2, {f"{HOSTILE}.0": RankHealth.DEAD}, names=["rg_0", HOSTILE])
    monitor = stage(crowd(1, 1))
    page = opened.open(monitor.url)
    live(page)
    monitor.show(view)
    page.wait_for_selector("#headline:text('1 rank is unhealthy')")
    assert HOSTILE in page.inner_text("#grid")
    assert f"{HOSTILE}.0" in page.inner_text("#attention")
    assert page.locator("main img").count() == 0
    page.locator("#grid .who", has_text=HOSTILE).click()
    page.wait_for_url("**/groups/*")  # a click does not wait for the page that it leads to
    assert page.inner_text("h1").split("\n")[:2] == ["Replica group", HOSTILE]
    assert page.locator("main img").count() == 0


# -- looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "size"), [(14, 2), (125, 8)], ids=["28 ranks", "1,000 ranks"])
def test_the_page_is_accessible_and_fits_a_phone(stage, opened, groups: int, size: int) -> None:
    sick = {**SICK, **{f"rg_{n}.0": state for n, state in enumerate(RankHealth, start=2)}}
    hosts = (QuarantineEntry(f"node-rg_2-{'x' * 60}", "ECC " * 30, "ann", NOW_S, None, None),)
    hour = [TrendPoint(NOW_S - 10.0 * n, 0.5, 2.0, 2.0) for n in reversed(range(20))]
    view = crowd(groups, size, sick, quarantine=hosts, troubles=("a trouble " + "y" * 90,),
                 evicting=frozenset({"rg_13"}), hosts_a_group=2, trend={"1h": hour})  # fmt: skip
    page = opened.open(stage(view).url)
    live(page)
    shapes = texts(page, "#legend .glyph")
    assert len(shapes) == len(set(shapes)) == len(RankHealth) + 1  # one is evicted
    assert_accessible(page, also="dark" if groups == 14 else "")
    page.set_viewport_size(PHONE)
    assert_fits(page)


def test_a_job_that_is_through_is_no_alarm(stage, opened) -> None:
    page = opened.open(stage(crowd(2, 2, rest=RankHealth.FINISHED)).url, width=390)
    live(page)
    assert texts(page, "#pulse h1") == ["The job has finished: 4 of 4 ranks ended with exit code 0"]
    assert page.locator(".s-dead:visible").count() == 0
    assert_fits(page)
