"""The lease: who may act when, on a clock that is moved by hand, whatever the processes do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from lightkeeper.monitor.background import in_thread
from lightkeeper.monitor.model.eviction import Fence
from lightkeeper.monitor.store.database import Database
from lightkeeper.monitor.store.lease import (
    Lease,
    Watch,
    has_ended,
    holder_words,
    process_name,
    renamed,
)
from lightkeeper.monitor.store.place import LeaseRow, StoreError, parse_place
from lightkeeper.monitor.store.store import Store
from tests.changed import replace
from tests.deep import DEEP
from tests.monitor.fakes import wait_until
from tests.monitor.samples import EVICTION

EMPTY = LeaseRow(0, 0, 0, None, None, None, 0.0)


@dataclass
class Row:
    """The row in a database; each call takes as long as it is told, before and after it counts."""

    row: LeaseRow = EMPTY
    away: bool = False
    full: bool = False  # it can only be read
    gone: str | None = None
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    def read(self) -> LeaseRow:
        return self._do(lambda: self.row, writes=False)

    def take(self, seen: LeaseRow, holder: str, url: str, since_s: float, ttl_s: float) -> bool:
        def change() -> bool:
            if (self.row.epoch, self.row.beat) != (seen.epoch, seen.beat):
                return False
            self.row = LeaseRow(
                seen.epoch + 1, seen.beat + 1, self.row.writes, holder, url, since_s, ttl_s
            )
            return True

        return self._do(change)

    def renew(self, fence: Fence) -> bool:
        return self._do(lambda: self._beat(fence, fence.holder))

    def give_back(self, fence: Fence) -> bool:
        return self._do(lambda: self._beat(fence, None))

    def _beat(self, fence: Fence, holder: str | None) -> bool:
        if (self.row.holder, self.row.epoch) != (fence.holder, fence.epoch):
            return False
        self.row = replace(self.row, beat=self.row.beat + 1, holder=holder)
        return True

    def _do(self, act, *, writes: bool = True):
        self.before()
        if self.full and writes:
            raise StoreError("disk is full")
        if self.away:
            raise StoreError("connection refused")
        result = act()
        self.after()
        return result


@dataclass
class World:
    """One database and monitors that share nothing else."""

    now_s: float = 1000.0
    table: Row = field(default_factory=Row)

    def monitor(self, name: str) -> Lease:
        return Lease(self.table, name, f"http://{name}", clock=lambda: self.now_s)

    def run(self, *monitors: Lease, seconds: float) -> None:
        """A turn of each every second."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for monitor in monitors:
                monitor.turn()


@pytest.fixture
def world() -> World:
    return World()


def may(*monitors: Lease) -> list[bool]:
    return [monitor.why_not() is None for monitor in monitors]


def test_the_first_has_it_and_the_second_knows_who(world: World) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    a.turn()
    b.turn()
    world.run(a, b, seconds=60)
    assert may(a, b) == [True, False]
    assert (a.standing().role, b.standing().role) == ("active", "standby")
    assert (b.standing().url, b.standing().epoch) == ("http://a", 1)
    assert b.standing().sentence() == "this monitor stands by: a (pid ?) is active, at http://a"


def test_who_gives_it_back_is_followed_at_once(world: World) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    a.turn()
    b.turn()
    a.close()
    assert may(a, b) == [False, False]
    world.run(b, seconds=1)
    assert may(a, b) == [False, True]
    assert b.standing().epoch == 2


def test_a_silent_holder_stops_acting_before_another_one_begins(world: World) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    a.turn()
    b.turn()
    stopped = world.now_s
    acting = []
    while not may(b)[0]:
        world.now_s += 0.1
        b.turn()
        acting.append((world.now_s - stopped, *may(a, b)))
    assert all(not (first and other) for _, first, other in acting)
    assert max(at for at, first, _ in acting if first) == pytest.approx(4.0, abs=0.11)
    assert acting[-1][0] == pytest.approx(5.0, abs=0.11)


def test_a_woken_holder_does_not_act_and_learns_that_it_lost(world: World) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    a.turn()
    fence = a.fence()
    world.run(b, seconds=8)
    assert may(a, b) == [False, True]
    assert a.fence() == fence  # it does not know yet, and a write under it is refused
    a.turn()
    assert a.fence() is None
    world.run(a, b, seconds=20)
    assert may(a, b) == [False, True]


def test_a_database_that_is_away_stops_all_and_back_again_the_holder_goes_on(world: World) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    world.run(a, b, seconds=3)
    world.table.away = True
    world.run(a, b, seconds=60)
    assert may(a, b) == [False, False]
    assert a.why_not() == "the lease could not be renewed for 60 s: connection refused"
    assert a.lapse() == a.why_not()
    assert b.lapse() is None
    world.table.away = False
    world.run(a, b, seconds=1)
    assert may(a, b) == [True, False]
    assert a.standing().epoch == 1


def test_on_a_full_disk_nobody_acts_and_the_holder_may_message_people_while_it_looks(world) -> None:
    a, b = world.monitor("a"), world.monitor("b")
    world.run(a, b, seconds=3)
    world.table.full = True
    world.run(a, b, seconds=60)
    assert may(a, b) == [False, False]
    assert (a.silenced(), b.silenced()) == (None, b.why_not())
    world.now_s += 4.0  # as when it was stopped: it may not before it has looked again
    assert a.silenced() == "the lease could not be renewed for 64 s: disk is full"


def test_a_taking_whose_answer_was_lost_is_found_again(world: World) -> None:
    a = world.monitor("a")

    def lose() -> None:
        if world.table.row.holder is not None:
            raise StoreError("the connection broke")

    world.table.after = lose
    a.turn()
    assert (world.table.row.holder, may(a)) == ("a", [False])
    world.table.after = lambda: None
    a.turn()
    assert may(a) == [True]


def test_after_a_failover_to_a_copy_that_lags_behind_the_loser_stays_a_loser(world: World) -> None:
    a, b = world.monitor("a one"), world.monitor("b one")
    a.turn()
    b.turn()
    lagging = world.table.row
    world.run(b, seconds=8)
    a.turn()
    world.table.row = lagging  # the copy does not know of the handover
    a.turn()
    assert may(a, b) == [False, True]
    world.run(a, b, seconds=3)
    assert may(a)[0] is False


def test_of_two_opinions_about_how_long_it_lasts_the_longer_counts() -> None:
    watch = Watch(replace(EMPTY, holder="a", ttl_s=30.0), 0.0)
    assert not watch.lapsed(29.0)
    assert watch.lapsed(30.0)
    shorter = Watch(replace(EMPTY, holder="a", ttl_s=1.0), 0.0)
    assert not shorter.lapsed(4.9)
    assert shorter.lapsed(5.0)


def test_a_row_that_changed_is_watched_anew_and_another_write_is_no_change() -> None:
    row = replace(EMPTY, holder="a", beat=7, ttl_s=5.0)
    watch = Watch(row, 0.0)
    assert watch.next(replace(row, writes=9), 3.0).since_s == 0.0
    assert watch.next(replace(row, beat=8), 3.0).since_s == 3.0
    assert watch.next(replace(row, holder=None), 3.0).since_s == 3.0


# -- property: whatever the processes and the database do ------------------------------------------

_pauses = st.sampled_from([0.0, 0.1, 0.9, 2.0, 4.2, 6.0, 30.0])
_steps = st.lists(
    st.tuples(st.integers(0, 2), _pauses, _pauses, _pauses, st.booleans()),
    min_size=5, max_size=40,
)  # fmt: skip


@settings(max_examples=60 * DEEP, deadline=None)
@given(_steps)
def test_never_two_may_act_at_one_moment(steps) -> None:
    """Each step one of three monitors takes a turn; it is stopped before and after the moment at
    which its statement counts, and meanwhile the others take turns.
    """
    world = World()
    monitors = [world.monitor(name) for name in "abc"]
    busy: set[int] = set()
    acted: set[int] = set()

    def check() -> None:
        acting = [n for n, monitor in enumerate(monitors) if monitor.why_not() is None]
        assert len(acting) <= 1, (world.now_s, acting)
        acted.update(acting)

    def passing(seconds: float) -> None:
        """Time goes on for all; those that are not stopped take a turn each second."""
        end_s = world.now_s + seconds
        while world.now_s < end_s:
            world.now_s = min(end_s, world.now_s + 0.5)
            check()
            for n in range(len(monitors)):
                if n not in busy:
                    turn(n, 0.0, 0.0)

    def turn(n: int, before: float, after: float) -> None:
        held = world.table.before, world.table.after
        busy.add(n)
        world.table.before, world.table.after = lambda: passing(before), lambda: passing(after)
        try:
            monitors[n].turn()
        finally:
            busy.discard(n)
            world.table.before, world.table.after = held
        check()

    for n, before, after, idle, away in steps:
        world.table.away = away
        turn(n, before, after)
        busy.add(n)  # and may be stopped after that too
        passing(idle)
        busy.discard(n)
    world.table.away = False
    for _ in range(14):
        world.now_s += 1.0
        for n in range(len(monitors)):
            turn(n, 0.0, 0.0)
    check()
    assert len([monitor for monitor in monitors if monitor.why_not() is None]) == 1


# -- who a process is ------------------------------------------------------------------------------


def test_a_living_process_is_not_gone_and_one_that_ended_is() -> None:
    name = process_name()
    assert not has_ended(name)
    assert process_name() != name
    words = name.split(" ")
    words[1] = "4194305"  # above any PID
    assert has_ended(" ".join(words))
    words = name.split(" ")
    words[2] = "1"  # the same number, started at another time
    assert has_ended(" ".join(words))


@pytest.mark.parametrize(
    ("word", "other"), [(0, "elsewhere"), (3, "another-boot"), (4, "4026539999"), (4, "?")]
)
def test_what_cannot_be_known_is_not_gone(word: int, other: str) -> None:
    words = process_name().split(" ")
    words[1], words[word] = "4194305", other
    assert not has_ended(" ".join(words))


@pytest.mark.parametrize("name", ["", "a", "a b c", "a b c d e f g"])
def test_a_name_that_is_none_is_not_gone(name: str) -> None:
    assert not has_ended(name)


def test_a_renamed_process_is_the_same_process() -> None:
    name = process_name()
    other = renamed(name)
    assert other != name
    assert other.split(" ")[:-1] == name.split(" ")[:-1]
    assert holder_words(other) == holder_words(name)


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_who_loses_the_file_of_his_store_stops_acting_at_once_and_says_so(tmp_path, how) -> None:
    """Two monitors were active after `mv monitor.db`, and killed twice for one fault."""
    path = tmp_path / "m.db"
    first = Database(parse_place(path))
    lease = Lease(first.lease, "first", "http://first")
    lease.turn()
    assert lease.why_not() is None
    path.rename(tmp_path / "away.db")
    if how == "deleted":
        (tmp_path / "away.db").unlink()
    if how == "replaced":
        second = Database(parse_place(path))
        other = Lease(second.lease, "second", "http://second")
        other.turn()
        assert other.why_not() is None
        second.close()
    lease.turn()
    assert lease.why_not() is not None
    assert "was moved or deleted" in str(lease.standing().problem)
    first.close()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_row_in_a_file_that_was_moved_is_no_base_for_an_act(tmp_path, when) -> None:
    """Between two renewals the row of an eviction went into the moved file, and it was done."""
    path = tmp_path / "m.db"
    store = Store(path)
    lease = Lease(store.database.lease, "first", "http://first")
    lease.turn()
    assert lease.why_not() is None
    if when == "before":
        path.rename(tmp_path / "away.db")
    else:
        event.listen(
            store.database.engine, "commit", lambda _: path.rename(tmp_path / "away.db"), once=True
        )
    store.save_decision(EVICTION)
    assert not store.flush()
    assert "was moved or deleted" in str(store.last_error)
    assert "was moved or deleted" in str(lease.why_not())  # at once, not at the next renewal
    (tmp_path / "away.db").rename(path)
    lease.turn()
    assert (lease.why_not(), store.flush()) == (None, True)
    store.close()


def test_who_begins_where_a_store_was_moved_away_waits_until_its_monitor_lets_go(tmp_path) -> None:
    """It got a "disk I/O error" of the other one's side files, and the hint to move those away."""
    path = tmp_path / "m.db"
    code = (
        "import sys; from pathlib import Path; from lightkeeper.monitor.store.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.save_target('rg_0.0', {}); store.flush()\n"
        "print(flush=True); sys.stdin.readline()\n"
        "store.save_target('rg_0.0', {}); store.flush(); print(store.last_error, flush=True)\n"
        "sys.stdin.readline()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with other:
        other.stdout.readline()
        path.rename(tmp_path / "away.db")
        opened = in_thread("second", lambda: Store(path))
        wait_until(path.exists, 10, "the second has begun")
        print(file=other.stdin, flush=True)
        assert "was moved or deleted" in other.stdout.readline()
        opened.result(20).close()
        other.stdin.close()


# -- files that are not ours -----------------------------------------------------------------------


def a_database_of(path: Path, pragma: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {pragma}")
        db.execute("CREATE TABLE albums (title TEXT)")
        db.commit()


def link_to(target: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


ODD = {
    "pipe": (os.mkfifo, "no regular file"),
    "link": (link_to(Path("target")), "a link"),
    "dangling link": (link_to(Path("nowhere")), "a link"),
    "folder": (Path.mkdir, "Is a directory"),
    "letter": (lambda path: path.write_text("a letter, not a database\n" * 50), "not a database"),
    "albums": (lambda path: a_database_of(path, "DELETE"), "another program's .* albums"),
    "albums in WAL": (lambda path: a_database_of(path, "WAL"), "another program's .* albums"),
}


SIDES = [
    (kind, side)
    for kind in ("pipe", "link", "dangling link", "folder")
    for side in ("-wal", "-shm", "-journal")
]
"""What is in a side file, SQLite judges."""


@pytest.mark.parametrize(("kind", "side"), [*((kind, "") for kind in ODD), *SIDES])
def test_a_store_that_is_not_ours_is_refused_and_left_as_it_was(tmp_path, kind, side) -> None:
    make, words = ODD[kind]
    (tmp_path / "target").write_text("somebody's")
    make(tmp_path / f"store{side}")

    def state() -> dict[str, object]:
        files = {file.name: file.lstat() for file in tmp_path.iterdir()}
        return {
            name: (seen.st_mode, seen.st_uid, seen.st_mtime_ns, seen.st_size, seen.st_ino)
            for name, seen in files.items()
        }

    for file in tmp_path.iterdir():
        if not file.is_symlink():
            file.chmod(0o644)
    before = state()
    with pytest.raises(StoreError, match=f"cannot use store .*{words}"):
        Database(parse_place(tmp_path / "store"))
    assert state() == before


def test_a_device_is_refused_and_left_as_it_was() -> None:
    before = Path("/dev/null").stat().st_mode
    with pytest.raises(StoreError, match="cannot use store /dev/null: no regular file"):
        Database(parse_place("/dev/null"))
    assert Path("/dev/null").stat().st_mode == before


def test_an_empty_file_is_taken_and_closed_to_others(tmp_path) -> None:
    path = tmp_path / "store"
    path.touch(0o644)
    Database(parse_place(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
    Database(parse_place(path)).close()
