"""The work on incidents as it is kept."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.act import work
from lightkeeper.monitor.act.work import WorkBook
from lightkeeper.monitor.model.work import WorkAction, WorkRow
from lightkeeper.monitor.store.store import Store
from tests.changed import replace
from tests.monitor.doubles import HandClock

NOW_S = 1_000_000.0


def row(text: str = "x", action: WorkAction = WorkAction.COMMENT, **more) -> WorkRow:
    return WorkRow(action, "ann", NOW_S, "inc-1", text, **more)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "m.db")
    yield made
    made.close()


def test_what_is_kept_outlives_the_monitor_and_each_row_has_a_name(store) -> None:
    book = WorkBook(HandClock(NOW_S), store)
    kept = [book.add(row(text)) for text in ("first", "second")]
    assert len({each.id for each in kept}) == 2
    later = WorkBook(HandClock(NOW_S), store)
    later.take_over(store.remembered().work)
    assert sorted(each.text for each in later.now.about("inc-1")) == ["first", "second"]


def test_the_oldest_go_first_and_no_silence_that_holds(store, monkeypatch) -> None:
    monkeypatch.setattr(work, "ROWS_KEPT", 3)
    book = WorkBook(HandClock(NOW_S), store)
    book.add(row("silent", WorkAction.SILENCE, until_s=NOW_S + 9, match={"kind": "dead"}))
    for number in range(4):
        book.add(replace(row(str(number)), at_s=NOW_S + number))
    assert [each.text for each in book.now.rows] == ["silent", "2", "3"]
    assert store.flush()
    assert sorted(each.text for each in store.remembered().work) == ["2", "3", "silent"]


def test_where_a_message_is_is_noted_once(store) -> None:
    book = WorkBook(HandClock(NOW_S), store)
    for url in ("http://a", "http://a", "http://b"):
        book.sent("inc-1", "webhook", url)
    assert [(each.author, each.text) for each in book.now.about("inc-1")] == [
        ("webhook", "http://a"), ("webhook", "http://b"),
    ]  # fmt: skip


def test_each_act_is_a_line_of_the_log(store, caplog: pytest.LogCaptureFixture) -> None:
    book = WorkBook(HandClock(NOW_S), store)
    book.add(row("by design", WorkAction.RESOLVE, kind="dead"))
    book.add(row("", WorkAction.ASSIGN, to="bob", kind="dead"))
    book.add(row("", WorkAction.LABEL, right=False, kind="dead"))
    assert caplog.messages == [
        "inc-1: resolved by ann: by design", "inc-1: assigned to bob by ann",
        "inc-1: labelled wrong by ann",
    ]  # fmt: skip
    assert caplog.records[0].incident == "inc-1"
