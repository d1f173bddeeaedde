"""Pages of incidents in a browser: what they look like to it, and what their script keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.incident import BundleView, State, Transition
from lightkeeper.monitor.show.web.incident_page import BundleStacks
from tests.monitor.decide.scene import EVICTION, ID, MARKS, ROWS, hang
from tests.monitor.fakes import wait_until
from tests.monitor.fleet import SimFleet, at, stop
from tests.monitor.show.test_incident_page import RUNGS
from tests.page.browsing import PHONE, assert_accessible, assert_fits, timed
from tests.page.serving import TOKEN
from tests.page.views import Simulated, crowd

pytestmark = pytest.mark.integration
EVIL = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
OPEN = replace(
    MARKS, evict_asked_s=None, left_quorum_s=None, survivor_commit_s=None, rejoined_s=None
)
FIRING = hang(state=State.FIRING, milestones=OPEN, resolution=None, story=hang().story[:2])


def view(*incidents: Any, **more: Any) -> View:
    """A fleet that had these."""
    base = crowd(3, 2)
    return replace(
        base,
        snapshot=replace(base.snapshot, now_s=2000.0),
        incidents=incidents or (hang(),),
        decisions={ID: (*more.pop("rows", ROWS), *more.pop("evictions", (EVICTION,)))},
        bundles={ID: BundleView(2048, 1.0)},
        **more,
    )  # fmt: skip


def soon(page, seen, what: str) -> None:
    """Let seconds pass until it is seen."""

    def second() -> bool:
        page.clock.run_for(1000)
        return bool(seen())

    wait_until(second, 20, what)


def test_pages_fit_and_are_accessible(stage, opened, stacks) -> None:
    full = view(hang(), evictions=(replace(EVICTION, rungs=RUNGS),))
    monitor = stage(full, stacks=lambda _: stacks)
    for path in ("/incidents/inc-1", "/incidents?since=odd", "/incidents?kind=dead", "/incidents"):
        page = opened.open(monitor.url + path)
        page.evaluate("() => document.querySelectorAll('details').forEach((d) => d.open = true)")
        assert_fits(page)
        page.set_viewport_size(PHONE)
        assert_fits(page)
        if path == "/incidents/inc-1":
            assert_accessible(page, also="dark")


def test_who_waits_for_whom_is_drawn_and_said_of_384_ranks(stage, opened) -> None:
    shown = Simulated(SimFleet(48, 8, [at(8, stop("rg_1.0"))])).run(14)
    (fault,) = shown.incidents
    page = opened.open(f"{stage(shown).url}/incidents/{fault.id}", scheme="dark")
    assert page.locator(".wait-box").count() == 4
    assert page.locator(".wait-box.culprit .name").text_content() == "▲ rg_1.0"
    assert page.locator('.graph a[href="/ranks/rg_1.0"]').count() == 1
    page.get_by_text("The same in words").click()
    assert "wait for rg_1.0: " in page.inner_text("#graph-words").replace("waits", "wait")
    assert len(page.content()) < 30_000
    page.set_viewport_size(PHONE)
    assert_fits(page)
    box = page.locator(".graph svg").bounding_box()
    assert box is not None
    assert box["width"] <= 366
    assert_accessible(page)


def test_an_open_one_goes_on_and_what_a_person_reads_stays_when_the_monitor_is_away_too(
    stage, opened, stacks
) -> None:
    monitor = stage(view(FIRING, evictions=(), rows=()), stacks=lambda _: stacks)
    page = timed(opened, monitor.url + "/incidents/inc-1", width=390)
    assert page.get_attribute("body", "data-every") == "2"
    folded = page.locator("#stacks details.crowd").nth(1)
    folded.locator("summary").first.click()
    page.evaluate("""() => {
        document.querySelector("#stacks pre.commands").scrollLeft = 40;
        document.querySelector("#who a").focus();
        window.scrollTo(0, 900);
        window.same = document.querySelector("#stacks");
    }""")
    place = "document.querySelector('#stacks').getBoundingClientRect().top"
    before = page.evaluate(place)
    monitor.show(view(
        replace(FIRING, story=(*FIRING.story, Transition(107.0, "severity", "worse"))), rows=ROWS,
    ))  # fmt: skip
    soon(page, lambda: "cool down" in page.inner_text("#decisions"), "the news is shown")
    kept = page.evaluate("""() => ({
        command: document.querySelector("#stacks pre.commands").scrollLeft,
        focus: document.activeElement.getAttribute("href"),
        same: document.querySelector("#stacks") === window.same,
    })""")
    focus = "/ranks/rg_1.0"
    assert kept == {"command": 40, "focus": focus, "same": True}
    assert folded.evaluate("one => one.open")
    assert abs(page.evaluate(place) - before) < 60, "what is read stays where it is"
    monitor.close()
    soon(page, lambda: page.locator("#away .banner").count(), "that it is away")
    assert "Monitor away since" in page.inner_text("#away")
    assert "rg_1.0 has not moved" in page.inner_text("#story")


def test_it_tells_when_it_is_over_and_then_asks_no_more(stage, opened, stacks) -> None:
    shown = [BundleStacks()]
    monitor = stage(view(FIRING, evictions=(), rows=()), stacks=lambda _: shown[0])
    page = timed(opened, monitor.url + "/incidents/inc-1")
    shown[0] = stacks
    soon(page, lambda: page.locator("#stacks .crowd").count(), "the stacks")
    monitor.show(view())
    soon(page, lambda: "is back, " in page.inner_text("#story"), "it is over")
    assert "rg_1 is back, " in page.inner_text("#story")


def test_one_that_is_over_is_not_asked_for_again(stage, opened, stacks) -> None:
    monitor = stage(view(), stacks=lambda _: stacks)
    page = timed(opened, "about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(monitor.url + "/incidents/inc-1")
    page.clock.run_for(60_000)
    page.evaluate("() => fetch('/healthz').then((answer) => answer.ok)")  # goes behind all others
    assert len([url for url in asked if "/incidents/" in url]) == 1


def test_hostile_texts_stay_texts_also_when_the_script_puts_them_in(stage, opened) -> None:
    hostile = replace(
        FIRING, verdict=replace(FIRING.verdict, reason=EVIL, evidence={EVIL: EVIL}, victims=(EVIL,))
    )
    monitor = stage(view(FIRING, evictions=()), stacks=lambda _: BundleStacks(why=EVIL))
    page = timed(opened, monitor.url + "/incidents/inc-1")
    monitor.show(view(hostile, evictions=()))
    soon(page, lambda: "<script>" in page.inner_text("#who"), "the new texts are shown")
    assert "owned" not in page.title()
    assert page.locator("main img, main script").count() == 0


def test_what_is_withheld_is_shown_to_who_keeps_the_token_in_this_tab(
    stage, opened, stacks
) -> None:
    monitor = stage(view(FIRING), stacks=lambda _: stacks, loopback=False)
    page = opened.open(monitor.url + "/incidents/inc-1")
    assert "curl -OJ" in page.inner_text("#evidence")
    assert page.locator("#stacks").count() == 0
    page.evaluate("token => sessionStorage.setItem('lightkeeper.token', token)", TOKEN)
    page.reload()
    page.wait_for_selector("#stacks")


def test_the_form_asks_and_leads_to_the_page(stage, opened) -> None:
    page = opened.open(stage(view()).url + "/incidents", width=390)
    page.select_option("select[name=kind]", "dead")
    page.click(".choose button")
    assert "None of 1 incident fits this." in page.inner_text("main")
    page.click("text=show all")
    page.click("#found a")
    page.wait_for_selector("#story")
