"""One conformance suite for both databases: what comes back, who may write, what is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from lightkeeper.monitor.model.eviction import Fence, Scope
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.store.lease import Lease
from lightkeeper.monitor.store.place import StoreError, parse_place
from lightkeeper.monitor.store.store import Store
from tests.forks import child
from tests.monitor.doubles import HandClock
from tests.monitor.fakes import wait_until
from tests.monitor.samples import EVENT, GROUP_ENTRY, incident
from tests.monitor.store.postgres import PASSWORD, Cluster
from tests.monitor.store.test_store import EVERYTHING, fill


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "m.db")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with closing(Store(place)) as made:
        yield made


def test_everything_comes_back(place: str, store: Store) -> None:
    with closing(Store(place)) as earlier:
        fill(earlier)
        earlier.save_switch("pause", "since noon")
        earlier.save_notice("page", "inc-1", {"notice": 1})
    assert store.remembered() == replace(
        EVERYTHING, switches={"pause": "since noon"}, notices=(("page", "inc-1", {"notice": 1}),)
    )
    store.drop_quarantine(Scope.HOST, "node1")
    store.drop_quarantine_event(EVENT)
    store.drop_target(RankName("rg_1.0"))
    store.save_switch("pause", None)
    assert store.flush()
    remembered = store.remembered()
    assert (remembered.quarantine, remembered.switches) == ((GROUP_ENTRY,), {})
    assert (remembered.quarantine_events, remembered.targets) == ((), ())


def test_of_two_that_write_only_the_one_with_the_lease_does(place: str, store: Store) -> None:
    with closing(Store(place)) as other:
        clock = HandClock(0.0)
        leases = [
            Lease(each.database.lease, name, f"http://{name}", clock=clock.now_s)
            for each, name in ((store, "a one"), (other, "b one"))
        ]
        for each in (store, other):
            each.follow()
        for lease in leases:
            lease.turn()
        fence = leases[0].fence()
        assert fence == Fence("a one", 1)
        assert leases[1].fence() is None
        store.lead(fence)
        store.save_incidents([incident()])
        other.save_incidents([incident("inc-2")])  # dropped: it only reads
        assert store.flush()
        assert other.flush()
        for seconds in (20, 6):  # the first is stopped, the second is not
            clock.advance(seconds)
            leases[1].turn()
        taken = leases[1].fence()
        assert taken == Fence("b one", 2)
        assert [i.id for i in other.lead(taken).incidents] == ["inc-1"]
        other.save_incidents([incident("inc-3", 300.0)])
        assert other.flush()
        store.save_incidents([incident("inc-4")])
        assert not store.flush()
        said = "another monitor holds the lease: nothing is written from here"
        assert store.last_error == said
        assert (store.follow() > 0, store.last_error) == (True, None)
        assert [i.id for i in store.remembered().incidents] == ["inc-3", "inc-1"]
        writes = leases[1]._table.read().writes
        other.save_incidents([incident("inc-5", 400.0)])
        other.flush()
        assert leases[1]._table.read().writes == writes + 1
        leases[1].close()
        for _ in range(2):
            leases[0].turn()
        assert leases[0].fence() == Fence(leases[0]._holder, 3)


def test_text_that_a_database_cannot_hold_is_made_so_that_it_can(store: Store) -> None:
    store.save_switch("pause", "a\0b \ud800")
    assert store.flush()
    assert store.remembered().switches == {"pause": "a\0b \ud800"}


def test_a_row_that_no_database_takes_does_not_hold_up_the_others(store: Store) -> None:
    store._put("decisions", "bad", {}, at_s=None)
    store.save_target(RankName("rg_1.0"), {"url": "http://h:1"})
    assert store.flush()
    assert (store.pending, store.errors) == (0, 1)
    assert store.remembered().targets == ({"url": "http://h:1"},)


def test_the_lease_is_renewed_while_thousands_of_targets_are_written(store: Store) -> None:
    lease = Lease(store.database.lease, "one", "http://one")
    lease.turn()
    fence = lease.fence()
    assert fence is not None
    store.lead(fence)
    for number in range(8_000):
        store.save_target(RankName(f"rg_{number}.0"), {"url": f"http://h{number}:1"})
    assert not store.flush(0.01)  # goes on in the background
    renewed = 0
    while store.pending:
        with suppress(StoreError):  # once in a while on a busy machine: the next beat comes in 1 s
            renewed += store.database.lease.renew(fence)
    assert renewed > 2
    assert (store.errors, len(store.remembered().targets)) == (0, 8_000)
    lease.close()


def test_those_that_make_a_store_at_once_all_get_it(tmp_path: Path) -> None:
    ends = [child(lambda: Store(tmp_path / "m.db").close()) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in ends] == [0] * 4


def test_a_file_of_which_half_is_still_in_its_wal_is_whole(tmp_path: Path) -> None:
    done, half = tmp_path / "m.db", tmp_path / "half.db"
    with closing(Store(done)):
        for side in ("", "-wal"):
            shutil.copy(f"{done}{side}", f"{half}{side}")
    with half.open("r+b") as file:  # as a monitor that starts at the same moment leaves it
        file.write(done.read_bytes()[:4096])
    Store(half).close()


def test_who_opens_a_file_waits_for_who_has_it_locked(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "m.db", check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.6, other.rollback)  # longer than a write waits
    timer.start()
    Store(tmp_path / "m.db").close()
    timer.join()
    other.close()


# -- PostgreSQL alone ----------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_a_database_that_goes_away_and_comes_back_loses_nothing(postgres: Cluster) -> None:
    store = Store(postgres.new_database())
    fill(store)
    postgres.stop()
    began = time.monotonic()
    assert not store.flush()
    assert time.monotonic() - began < 10.0
    assert store.pending > 5
    assert PASSWORD not in (store.last_error or "")
    postgres.start()
    wait_until(store.flush, 20, "it is written")
    assert store.remembered() == EVERYTHING
    store.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((PASSWORD, "wrong-" + PASSWORD), "password authentication failed"),
        (("/lk", "/nowhere_lk"), "does not exist"),
        ((":PORT", ":1"), "refused"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_the_password(
    postgres: Cluster, change: tuple[str, str], words: str
) -> None:
    old, new = change
    url = postgres.new_database().replace(f":{postgres.port}" if old == ":PORT" else old, new)
    with pytest.raises(StoreError, match=words) as caught:
        Store(url)
    said = str(caught.value)
    assert PASSWORD not in said
    assert "\n" not in said
    assert "keeper:***@127.0.0.1" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@h/d", "postgresql://u:***@h/d"),
        ("postgres://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgresql+psycopg://u:p%40w@[::1]/d?sslmode=require", "postgresql://u:***@[::1]/d?sslmode=require"),
        ("postgresql://h/d?user=u&password=pw&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("/var/m.db", "/var/m.db"),
    ],
)  # fmt: skip
def test_a_place_is_shown_without_its_password(text: str, shown: str) -> None:
    place = parse_place(text)
    assert str(place) == shown
    assert "pw" not in repr(place)


@pytest.mark.parametrize("text", ["mysql://u:pw@h/d", "http://h:pw@x", "sqlite:///m.db"])
def test_another_kind_of_database_is_one_clear_line(text: str) -> None:
    with pytest.raises(StoreError, match="expected") as caught:
        parse_place(text)
    assert "pw" not in str(caught.value)


def test_without_psycopg_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'lightkeeper\[postgres\]'"):
        Store("postgresql://u@h/d")


def test_a_decision_survives_a_power_cut_and_the_rest_may_lose_its_last_second(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "m.db")
    said: list[str] = []

    @event.listens_for(store.database.engine, "before_cursor_execute")
    def note(_connection, _cursor, statement, *_) -> None:
        said.append(" ".join(statement.split()[:3]))

    store.save_target(RankName("r.0"), {})
    store.flush()
    assert "PRAGMA synchronous =" not in said
    said.clear()
    fill(store)
    store.flush()
    assert said.index("PRAGMA synchronous =") < said.index("INSERT INTO records")
    store.close()
