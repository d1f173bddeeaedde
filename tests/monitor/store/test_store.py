"""What survives a restart, and what a sick disk does."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from lightkeeper.monitor.model.eviction import Fence, Remembered
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import IncidentId, RankName
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.store import store as storing
from lightkeeper.monitor.store.place import StoreError
from lightkeeper.monitor.store.store import Store
from tests.monitor.samples import ENTRY, EVENT, EVICTION, GROUP_ENTRY, HOLD, incident


def fill(store: Store) -> None:
    store.save_incidents([incident(), incident("inc-2", 200.0)])
    store.save_decision(HELD)
    store.save_decision(EVICTION)
    store.save_quarantine(ENTRY)
    store.save_quarantine(GROUP_ENTRY)
    store.save_quarantine_event(EVENT)
    store.save_target(RankName("rg_1.0"), {"url": "http://h:1"})
    for point in (TREND, replace(TREND, rate=0.5)):  # the same place
        store.save_trend("1h", point)
    store.save_trend("1h", replace(TREND, at_s=TREND.at_s + 3600.0))  # in place of the old one
    store.save_trend("7d", TREND)


TREND = TrendPoint(1000.0, None, 2.0, 1.0)
HELD = replace(HOLD, at_s=102.0, epoch=3)

EVERYTHING = Remembered(
    incidents=(incident("inc-2", 200.0), incident()),
    decisions=(HELD, EVICTION),
    quarantine=(GROUP_ENTRY, ENTRY),
    quarantine_events=(EVENT,),
    targets=({"url": "http://h:1"},),
    trend=(("7d", TREND), ("1h", replace(TREND, at_s=TREND.at_s + 3600.0))),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(Store(path)) as made:
        yield made


def reopened(path: Path) -> Remembered:
    with closing(Store(path)) as store:
        return store.remembered()


def test_what_was_flushed_is_there_without_a_clean_end(tmp_path: Path, store: Store) -> None:
    fill(store)
    assert store.flush()
    for suffix in ("", "-wal"):
        (tmp_path / f"copy.db{suffix}").write_bytes((tmp_path / f"m.db{suffix}").read_bytes())
    assert reopened(tmp_path / "copy.db") == EVERYTHING


def test_a_damaged_row_does_not_hide_the_others(path: Path, store: Store) -> None:
    fill(store)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET body = '{\"id\": 3}' WHERE key = 'inc-2'")
    db.close()
    assert [stored.id for stored in reopened(path).incidents] == ["inc-1"]


@pytest.mark.parametrize("body", ["3", "[]", '["pause"]', "{}", "null"])
@pytest.mark.parametrize("kind", ["notices", "switches", "targets", "decisions"])
def test_a_damaged_row_of_any_kind_is_counted_and_left_out(
    path: Path, store: Store, kind: str, body: str
) -> None:
    fill(store)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO records VALUES (?, 'damaged', 0, ?)", (kind, body))
    db.close()
    with closing(Store(path)) as again:
        saved = again.remembered()
        if (kind, body) not in (("targets", "{}"), ("targets", "[]")):  # a target as it may be
            assert (saved, again.errors) == (EVERYTHING, 1)


def test_decisions_that_outlived_their_incidents_go_and_one_by_hand_stays(store: Store) -> None:
    """It has no incident yet if its monitor died at once; who takes over carries it out."""
    over = replace(incident(), state=State.RESOLVED)
    old = replace(HELD, incident_id=IncidentId("old"), at_s=over.milestones.first_seen_s - 1)
    by_hand = replace(EVICTION, incident_id=IncidentId("by_hand-rg_2-1"), author="ann")
    store.save_incidents([over])
    for row in (old, HELD, by_hand):
        store.save_decision(row)
    store.flush()
    lease = store.database.lease
    assert lease.take(lease.read(), "one", "http://one", 0.0, 5.0)
    assert store.lead(Fence("one", 1)).decisions == (HELD, by_hand)
    assert store.flush()
    assert store.remembered().decisions == (HELD, by_hand)


def test_who_takes_over_keeps_the_latest_that_are_over_and_all_that_are_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "RESOLVED_KEPT", 2)
    over = [replace(incident(f"inc-{n}", 100.0 * n), state=State.RESOLVED) for n in range(1, 5)]
    store.save_incidents([incident("inc-0", 50.0), *over])
    store.flush()
    lease = store.database.lease
    assert lease.take(lease.read(), "one", "http://one", 0.0, 5.0)
    for saved in (store.lead(Fence("one", 1)), store.flush() and store.remembered()):
        assert [kept.id for kept in saved.incidents] == ["inc-4", "inc-3", "inc-0"]


# -- a sick disk ----------------------------------------------------------------------------------


def full_disk(store: Store, *, full: bool) -> Callable[[], None]:
    """SQLite's own limit, of each connection: the same error as a full disk; how to end it."""
    engine = store.database.engine
    with engine.connect() as db:
        pages = db.exec_driver_sql("PRAGMA page_count").scalar() if full else 1_000_000

    @event.listens_for(engine, "checkout")
    def limit(connection, *_) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    return lambda: full_disk(store, full=False) and None


def test_a_full_disk_is_counted_kept_in_memory_and_written_later(path: Path, store: Store) -> None:
    full_disk(store, full=True)
    big = {"url": "x" * 100_000}
    store.save_target(RankName("rg_9.0"), big)
    fill(store)
    assert not store.flush()
    assert not store.flush()
    assert store.errors == 2
    assert "full" in (store.last_error or "")
    assert store.pending > 5
    full_disk(store, full=False)
    assert store.flush()
    assert (store.pending, store.last_error) == (0, None)
    store.close()
    assert big in reopened(path).targets


def test_a_locked_database_loses_nothing(path: Path, store: Store) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    fill(store)
    assert not store.flush()
    other.execute("ROLLBACK")
    other.close()
    store.close()
    assert reopened(path) == EVERYTHING


def damaged(path: Path) -> None:
    path.write_bytes(b"this is no database, it is a letter to somebody " * 100)


def torn(path: Path) -> None:
    store = Store(path)
    fill(store)
    store.close()
    content = bytearray(path.read_bytes())
    content[1024 : len(content) - 512] = b"\xa5" * (len(content) - 1536)
    path.write_bytes(bytes(content))


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (damaged, "not a database"),
        (torn, "move it away"),
        (newer, "has schema 99, this lightkeeper writes 6"),
        (folder, "Is a directory"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_line(spoil, words: str, path: Path) -> None:
    spoil(path)
    with pytest.raises(StoreError, match=words) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_where_nobody_may_write_is_one_clear_line() -> None:
    with pytest.raises(StoreError, match=r"cannot write store /proc/lightkeeper/m.db"):
        Store(Path("/proc/lightkeeper/m.db"))


def test_a_disk_that_hangs_holds_nobody_up(path: Path, store: Store) -> None:
    answers, write = threading.Event(), store.database.write
    store.database.write = lambda *batch: answers.wait(30) and write(*batch)
    fill(store)
    began = time.monotonic()
    assert not store.flush(wait_s=0.2)
    assert time.monotonic() - began < 10.0
    assert store.last_error == "the disk has not answered for 0.2 s"
    assert store.pending > 5
    answers.set()
    assert store.flush()
    store.close()
    assert reopened(path) == EVERYTHING


def test_what_changed_while_it_was_written_is_written_again(path: Path, store: Store) -> None:
    for number in range(200):
        store.save_target(RankName("rg_0.0"), {"url": f"http://h:{number}"})
        store.flush(wait_s=0.0)
    store.close()
    assert reopened(path).targets == ({"url": "http://h:199"},)
