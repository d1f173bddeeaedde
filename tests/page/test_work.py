"""An incident is worked on its page, by keyboard alone, from the first look to `resolved`."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest

from lightkeeper.monitor.act.work import WorkBook
from lightkeeper.monitor.model.incident import BundleView
from lightkeeper.monitor.model.work import WorkAction, WorkRow
from tests.changed import replace
from tests.monitor.decide.scene import ID
from tests.monitor.doubles import Memory
from tests.monitor.fakes import wait_until
from tests.page.browsing import WIDE, assert_accessible, assert_fits, live
from tests.page.serving import TOKEN, Stage
from tests.page.test_incidents import FIRING, view
from tests.page.views import crowd

pytestmark = pytest.mark.integration
LOADS = re.compile(r'"(/static/[^"]+|\./[a-z-]+\.js)"')
SILENCE = WorkRow(
    WorkAction.SILENCE, "bob", 1.0, text="switch", match={"kind": "dead", "host": "rack7-*"}
)


@pytest.fixture
def worked(stage, stacks):
    """A monitor whose incident fires, and that keeps what people do about it."""

    def make(**more) -> Stage:
        more.setdefault("shown", view(FIRING, evictions=(), rows=()))
        made: list[Stage] = []

        def work(row):
            row = book.add(row)
            made[0].show(replace(made[0].view, work=book.now))
            return row

        made.append(
            stage(more.pop("shown"), stacks=more.pop("stacks", lambda _: stacks), work=work, **more)
        )
        book = WorkBook(made[0].clock, Memory())
        return made[0]

    return make


def to(page, name: str) -> None:
    """By Tab to the button or field of this name."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText || document.activeElement.name") == name:
            return
    raise AssertionError(f"no way by Tab to {name!r}")


def act(page, button: str, **fields: str) -> None:
    """Open the dialog, fill it, send it, close it: by keyboard."""
    to(page, button)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog.deed")
    for name, text in fields.items():
        if page.evaluate("document.activeElement.name") != name:
            to(page, name)
        page.keyboard.press("Control+A")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .answer.good")
    assert page.evaluate("document.activeElement.innerText") == "Close"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog.deed", state="detached")


def says(page, text: str) -> None:
    wait_until(lambda: text in page.inner_text("#work"), 10, text)


def test_by_keyboard_alone_from_the_page_to_resolved(worked, opened) -> None:
    monitor = worked()
    page = opened.open(monitor.url, width=390, height=844, scheme="dark")
    live(page)
    to(page, "Open the incident")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/incidents/{ID}")
    live(page)
    assert "not acknowledged" in page.inner_text("#work")
    act(page, "Acknowledge", reason="looking", author="ann", token=TOKEN)
    says(page, "acknowledged by ann")
    sent = {"author": "ann", "token": TOKEN}
    act(page, "Comment", text="its disk is changed", **sent)
    act(page, "Silence", host="rack7-*", reason="switch", hours="2", **sent)
    act(page, "Accusation was right", **sent)
    says(page, "accusation right")
    act(page, "Resolve", reason="the disk is changed", **sent)
    says(page, "resolved by ann")
    work = page.inner_text("#work")
    for text in ("its disk is changed", "The fault is still there"):
        assert text in work, text
    assert page.locator("#acts button", has_text="Resolve").count() == 0
    assert page.evaluate("document.activeElement.closest('#acts') !== null"), "the focus is lost"
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert_fits(page)
    assert_accessible(page, also="light")
    page.set_viewport_size(WIDE)
    assert_fits(page)


def test_a_dialog_fits_and_is_accessible_and_says_what_was_refused(worked, opened) -> None:
    monitor = worked()
    page = opened.open(f"{monitor.url}/incidents/{ID}", width=390, height=844, scheme="dark")
    live(page)
    page.click("#acts button:has-text('Silence')")
    assert page.input_value("dialog input[name=kind]") == "not_entered"
    assert page.input_value("dialog input[name=group]") == "rg_1"
    assert_fits(page)
    assert_accessible(page)
    for name, text in (("kind", ""), ("group", ""), ("reason", "x"), ("hours", "2")):
        page.fill(f"dialog input[name={name}]", text)
    page.fill("dialog input[name=token]", TOKEN)
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .answer.bad")
    assert "say what: kind, group, host, rank or run" in page.inner_text("dialog .answer")


def test_a_silence_is_ended_from_the_page_of_the_fleet(worked, opened) -> None:
    monitor = worked()
    monitor.desk.work(replace(SILENCE, until_s=monitor.clock.now_s() + 60))
    page = opened.open(monitor.url, width=390, height=844)
    live(page)
    assert "kind=dead host=rack7-*" in page.inner_text("#banners")
    assert_fits(page)
    act(page, "End the silence of kind=dead host=rack7-*", author="ann", token=TOKEN)
    wait_until(lambda: "rack7" not in page.inner_text("main"), 10, "it is ended")


def test_who_keeps_the_token_types_token_and_name_once(worked, opened) -> None:
    monitor = worked()
    page = opened.open(f"{monitor.url}/incidents/{ID}")
    live(page)
    page.click("#acts button:has-text('Acknowledge')")
    page.fill("dialog input[name=author]", "ann")
    page.fill("dialog input[name=token]", TOKEN)
    page.check("dialog input[name=keep]")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .answer.good")
    page.keyboard.press("Enter")
    says(page, "acknowledged by ann")
    act(page, "Assign", to="bob")
    says(page, "assigned to bob")
    assert monitor.view.work.about(ID)[-1].author == "ann"


def test_one_that_is_over_is_labelled_and_shows_it_though_it_asks_no_more(worked, opened) -> None:
    monitor = worked(shown=view())
    page = opened.open(f"{monitor.url}/incidents/{ID}")
    live(page)
    names = [text.strip() for text in page.locator("#acts .buttons button").all_inner_texts()]
    assert names == ["Comment", "Accusation was right", "Accusation was wrong"]
    act(page, "Accusation was wrong", reason="by design", token=TOKEN)
    says(page, "accusation wrong")
    page.goto(monitor.url + "/incidents")
    assert "0 %" in page.inner_text("#labels")
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert_accessible(page, also="dark")


def test_ids_commands_and_stacks_are_copied_and_the_evidence_is_a_download_also_with_a_token(
    worked, opened, tmp_path
) -> None:
    (bundle := tmp_path / f"{ID}.zip").write_bytes(b"PK evidence")
    monitor = worked(bundle=lambda _: bundle)
    page = opened.open(f"{monitor.url}/incidents/{ID}")
    live(page)
    copied = "navigator.clipboard.readText()"
    page.click("#story button.copy")
    wait_until(lambda: page.evaluate(copied) == ID, 10, "the id is copied")
    assert page.inner_text("#story button.copy") == "Copied"
    page.click("#stacks .copied button.copy")
    wait_until(lambda: "lightkeeper analyze" in page.evaluate(copied), 10, "commands are copied")
    page.locator("#stacks details.crowd[open] .thread button.copy").first.click()
    wait_until(lambda: "_hold_gil" in page.evaluate(copied), 10, "a stack is copied")
    page.locator("#acts summary").click()
    page.locator("#acts .shell button.copy").first.click()
    wait_until(lambda: f"incidents ack {ID}" in page.evaluate(copied), 10, "a command is copied")
    with page.expect_download() as plain:
        page.click("text=Download the evidence")
    assert plain.value.path().read_bytes() == b"PK evidence"
    guarded = worked(bundle=lambda _: bundle, loopback=False)
    page = opened.open(f"{guarded.url}/incidents/{ID}")
    live(page)
    page.click("button:has-text('Download the evidence')")
    assert page.locator("dialog input[name=author]").count() == 0
    page.fill("dialog input[name=token]", TOKEN)
    with page.expect_download() as withheld:
        page.keyboard.press("Enter")
    assert withheld.value.suggested_filename == f"{ID}.zip"
    assert withheld.value.path().read_bytes() == b"PK evidence"


def test_without_a_script_it_reads_and_has_no_dead_buttons(worked, opened) -> None:
    monitor = worked()
    page = opened.open(f"{monitor.url}/incidents/{ID}", java_script_enabled=False)
    assert "not acknowledged" in page.inner_text("#work")
    assert "_hold_gil (trainer/faults.py:228)" in page.inner_text("main")
    assert page.locator("button:visible").count() == 0
    page.get_by_text("From a shell").click()
    assert f"lightkeeper incidents ack {ID}" in page.inner_text("#acts")


def test_pages_of_64_ranks_stay_below_200_kb(worked) -> None:
    fleet = crowd(8, 8)
    victims = tuple(sorted(fleet.snapshot.by_rank))
    big = replace(FIRING, verdict=replace(FIRING.verdict, victims=victims))
    shown = replace(fleet, incidents=(big,), bundles={ID: BundleView(2048, 1.0)})
    client = worked(shown=shown).app.test_client()

    def loaded(path: str, sizes: dict[str, int]) -> dict[str, int]:
        """Path -> bytes of what a browser loads."""
        if path not in sizes:
            with client.get(path) as answer:
                assert answer.status_code == 200, path
                sizes[path] = len(answer.data)
            for more in LOADS.findall(answer.text):
                loaded(urljoin(path, more), sizes)
        return sizes

    others = ("/groups/rg_1", "/hosts/node-rg_1-0", "/ranks/rg_1.0", "/runs", "/runbooks")
    for path in (f"/incidents/{ID}", "/incidents", "/", "/?by=host", *others):
        sizes = loaded(path, {})
        assert "/static/sections.js" in sizes  # an import of an import
        assert 20_000 < sum(sizes.values()) < 200_000, sizes


def test_what_was_written_is_on_a_standby_too_which_changes_nothing(worked, opened) -> None:
    monitor = worked(token=None)
    page = opened.open(f"{monitor.url}/incidents/{ID}")
    live(page)
    assert page.locator("#acts .buttons button:enabled").count() == 0
    assert "no token is configured" in page.inner_text("#acts-why")
