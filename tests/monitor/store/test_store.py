"""What survives a restart, and what a sick disk does."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from monitor.model.eviction import (
    Accused,
    Ask,
    Change,
    DecisionRow,
    DecisionState,
    Eviction,
    EvictionState,
    Guard,
    Hold,
    QuarantineEntry,
    QuarantineEvent,
    Remembered,
    Rung,
    RungOutcome,
    Scope,
)
from monitor.model.incident import Incident, Milestones, State, Transition
from monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.model.verdict import Confidence, Kind, Severity, Verdict
from monitor.store.place import StoreError
from monitor.store.store import Store


def incident(name: str = "inc-1", first_seen_s: float = 100.0, state: State = State.FIRING):
    culprits, groups = (RankName("rg_1.0"),), (GroupName("rg_1"),)
    return Incident(
        id=IncidentId(name),
        kind=Kind.NOT_ENTERED,
        fingerprint="not_entered rg_1.0",
        signature="not_entered:forward",
        state=state,
        culprits=culprits,
        groups=groups,
        replica_ids=(ReplicaId("rg_1:uuid1"),),
        incarnations=("one",),
        verdict=Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=culprits,
            groups=groups,
            reason="rg_1.0 has not moved for 9 s",
            confidence=Confidence.LIKELY,
            since_s=90.0,
            victims=(RankName("rg_0.0"),),
            evidence={"phase": "forward for 9 s"},
            signature="not_entered:forward",
        ),
        milestones=Milestones(first_seen_s=first_seen_s, firing_s=first_seen_s + 2),
        story=(
            Transition(first_seen_s, "pending", "seen"),
            Transition(first_seen_s + 2, "firing", "held for two sweeps"),
        ),
        last_seen_s=first_seen_s + 3,
        severity=Severity.CRITICAL,
    )


EVICTION = Eviction(
    incident_id=IncidentId("inc-1"),
    group=GroupName("rg_1"),
    replica_id=ReplicaId("rg_1:uuid1"),
    asked_s=103.0,
    rungs=(RungOutcome(Rung.LIGHTHOUSE_KILL, 103.1, 103.5, "answered 500"),),
    gone_s=103.6,
    ended_s=103.6,
    state=EvictionState.CONFIRMED,
    reason="hung",
    quarantine=(Host("node1"),),
    accused=(Accused(RankName("rg_1.0"), "one", "http://h:1", Host("node1"), {"pod": "p"}),),
    asks=(Ask(Rung.LIGHTHOUSE_KILL, "", 103.1, "answered 500", waits=False),),
    outcome="every accused process is gone",
)
ENTRY = QuarantineEntry(Host("node1"), "hung", "lightkeeper", 103.0, 9999.0, IncidentId("inc-1"))
GROUP_ENTRY = QuarantineEntry("rg_2", "bad data", "ann", 104.0, None, None, Scope.GROUP)
EVENT = QuarantineEvent(
    101.0, Change.ACCUSED, "node1", "hung", incident_id=IncidentId("inc-1"), kind="not_entered",
    signature="s", wide=True,
)  # fmt: skip
HOLD = Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon")


def fill(store: Store) -> None:
    store.save_incidents([incident(), incident("inc-2", 200.0)])
    store.save_hold(HOLD, 102.0)
    store.save_eviction(EVICTION)
    store.save_quarantine(ENTRY)
    store.save_quarantine(GROUP_ENTRY)
    store.save_quarantine_event(EVENT)
    store.save_target(RankName("rg_1.0"), {"url": "http://h:1"})


EVERYTHING = Remembered(
    incidents=(incident("inc-2", 200.0), incident()),
    decisions=(
        DecisionRow(IncidentId("inc-1"), 102.0, "hold", "cool_down", "too soon"),
        DecisionRow(
            IncidentId("inc-1"),
            103.0,
            "evict",
            None,
            "hung",
            state=DecisionState.CONFIRMED,
            ended_s=103.6,
            outcome="every accused process is gone",
            body={
                "group": "rg_1",
                "replica_id": "rg_1:uuid1",
                "quarantine": ["node1"],
                "accused": {"rg_1.0": "one"},
            },
        ),
    ),
    evictions=(EVICTION,),
    quarantine=(GROUP_ENTRY, ENTRY),
    quarantine_events=(EVENT,),
    targets=({"url": "http://h:1"},),
)


def reopened(path: Path) -> Remembered:
    store = Store(path)
    try:
        return store.remembered()
    finally:
        store.close()


def test_what_was_flushed_is_there_without_a_clean_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    fill(store)
    assert store.flush()
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal"):
        (tmp_path / f"copy.db{suffix}").write_bytes((tmp_path / f"m.db{suffix}").read_bytes())
    assert reopened(copy) == EVERYTHING
    store.close()


def test_a_damaged_row_does_not_hide_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    fill(store)
    store.close()
    with sqlite3.connect(tmp_path / "m.db") as db:
        db.execute("UPDATE incidents SET body = '{\"id\": 3}' WHERE id = 'inc-2'")
    db.close()
    assert [one.id for one in reopened(tmp_path / "m.db").incidents] == ["inc-1"]


# -- a sick disk ----------------------------------------------------------------------------------


def full_disk(store: Store, *, full: bool) -> Callable[[], None]:
    """SQLite's own limit, of each connection: the same error as a full disk."""
    engine = store.database.engine
    with engine.connect() as db:
        pages = db.exec_driver_sql("PRAGMA page_count").scalar() if full else 1_000_000

    @event.listens_for(engine, "checkout")
    def limit(connection, *_) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    return lambda: full_disk(store, full=False) and None


def test_a_full_disk_is_counted_kept_in_memory_and_written_later(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
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
    assert big in reopened(tmp_path / "m.db").targets


def test_a_locked_database_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    other = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    fill(store)
    assert not store.flush()
    other.execute("ROLLBACK")
    other.close()
    store.close()
    assert reopened(tmp_path / "m.db") == EVERYTHING


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
        (damaged, "file is not a database"),
        (torn, "move it away"),
        (newer, "has schema 99, this lightkeeper writes 3"),
        (folder, "is a directory"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_line(spoil, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    spoil(path)
    with pytest.raises(StoreError, match=words) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_where_nobody_may_write_is_one_clear_line() -> None:
    with pytest.raises(StoreError, match=r"cannot write store /proc/lightkeeper/m.db"):
        Store(Path("/proc/lightkeeper/m.db"))


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    fill(store)
    with store._disk:  # the writer waits, as in a write that does not return
        began = time.monotonic()
        assert not store.flush(wait_s=0.2)
        assert time.monotonic() - began < 10.0
        assert store.last_error == "the disk has not answered for 0.2 s"
        assert store.pending > 5
    assert store.flush()
    store.close()
    assert reopened(tmp_path / "m.db") == EVERYTHING


def test_what_changed_while_it_was_written_is_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    for number in range(200):
        store.save_target(RankName("rg_0.0"), {"url": f"http://h:{number}"})
        store.flush(wait_s=0.0)
    store.close()
    assert reopened(tmp_path / "m.db").targets == ({"url": "http://h:199"},)
