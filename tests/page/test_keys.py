"""The page of the fleet under a person's hands: the filter, and every key."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.verdict import RankHealth
from tests.page.browsing import live
from tests.page.views import crowd

pytestmark = pytest.mark.integration

SICK = {
    "rg_0.0": RankHealth.STALLED,
    "rg_0.1": RankHealth.WAITING,
    "rg_1.0": RankHealth.DEAD,
    "rg_1.1": RankHealth.UNREACHABLE,
}


def test_the_filter_shows_whom_it_names_follows_changes_and_is_kept_in_the_address(
    stage, opened
) -> None:
    monitor = stage(crowd(125, 2, SICK))
    url = monitor.url
    page = opened.open(f"{url}/?by=group")
    live(page)
    shown = page.locator("#grid > li:visible")
    page.select_option("#filter-state", "not healthy")
    assert [item.get_attribute("data-key") for item in shown.all()] == ["rg_0", "rg_1"]
    assert "2 of 125 shown" in page.inner_text("#filter")
    page.fill("#filter-text", "RG_1")
    page.wait_for_url(f"{url}/?by=group&name=RG_1&state=not+healthy")
    page.goto(page.url)  # as a colleague does to whom it was sent
    live(page)
    assert "1 of 125 shown" in page.inner_text("#filter")
    assert page.input_value("#filter-text") == "RG_1"
    assert page.input_value("#filter-state") == "not healthy"
    page.press("#filter-text", "Escape")
    monitor.show(crowd(125, 2, {"rg_7.1": RankHealth.STARTING}, tick=101))
    page.wait_for_selector('#grid > li[data-key="rg_7"]:visible')
    assert shown.count() == 1
    page.select_option("#filter-state", "any state")
    page.wait_for_url(f"{url}/?by=group")
    page.fill("#filter-text", "RG_12")
    assert shown.count() == 6  # rg_12 and rg_120 to rg_124
    page.press("#filter-text", "Escape")
    assert shown.count() == 125
    page.goto(f"{url}/?state=nonsense&name={'x' * 500}")
    live(page)
    assert page.input_value("#filter-state") == "any state"
    assert len(page.input_value("#filter-text")) == 120


def test_the_grid_is_one_stop_and_arrows_move_in_it(stage, opened) -> None:
    page = opened.open(stage(crowd(125, 2, SICK)).url)
    live(page)

    def where() -> str:
        return page.evaluate("document.activeElement.pathname")

    assert page.locator('#grid a[tabindex="0"]').count() == 1
    page.focus("#filter-state")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # past the two links of the grouping
    assert where() == "/groups/rg_0"
    for key, path in (("ArrowRight", "/ranks/rg_0.0"), ("ArrowRight", "/groups/rg_1"),
                      ("ArrowLeft", "/ranks/rg_0.0"), ("End", "/groups/rg_124"),
                      ("Home", "/groups/rg_0")):  # fmt: skip
        page.keyboard.press(key)
        assert where() == path
    page.keyboard.press("ArrowDown")
    below = where()
    assert below not in ("/groups/rg_0", "/groups/rg_1")
    page.keyboard.press("ArrowUp")
    assert where() == "/groups/rg_0"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{below}")


def test_keys_are_listed_and_do_what_they_say(stage, opened) -> None:
    page = opened.open(stage(crowd(2, 2, SICK)).url)
    live(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    outline = "getComputedStyle(document.querySelector('.home')).outlineStyle"
    assert page.evaluate(outline) == "none"
    page.focus(".home")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "home"
    assert page.evaluate(outline) == "solid"  # who moves by keyboard sees where they are
    page.keyboard.press("Shift+?")
    assert page.locator("dialog[open] dt").count() > 5
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter-text"
    page.keyboard.type("fi?")  # in a field they are letters
    assert page.input_value("#filter-text") == "fi?"
    page.keyboard.press("Escape")
    page.locator("h2").first.click()
    page.keyboard.press("a")
    assert page.evaluate("document.activeElement.pathname") == "/ranks/rg_1.0"
    page.keyboard.press("i")
    page.wait_for_url("**/incidents")
