"""No reader ever sees half a write: under a writer at full speed, stopped, or dead at any store."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter, StepFacts
from tests.waiting import wait_for
from tests.worker_server.pages import enter, identity
from tests.worker_server.ranks import ROOT

KINDS = (layout.NOTE_STACKS, layout.NOTE_EXCEPTION)
PEERS = 2


@pytest.fixture(autouse=True)
def few_transfers(monkeypatch):
    """So that in each round a row changes hands."""
    monkeypatch.setattr(layout, "MAX_TRANSFERS", PEERS)


def note_text(n):
    """Says its own number and length, and is one letter otherwise."""
    return f"{n} " + chr(65 + n % 26) * (n * 37 % 7000)


class Everything:
    """Writes every area of the page; round n says n wherever it can."""

    def __init__(self, page):
        self.page = page
        self.row = page.group_row("default", 2)
        self.phases = [page.phase_id(name) for name in ("data", "forward")]
        self.counters = [page.number_of(name, layout.COUNTER_NAMES) for name in ("one", "two")]
        self.replica = page.intern("rg:x")
        self.n = 0

    def round(self):
        page, n = self.page, self.n + 1
        begin_ns = page.change_phase(self.phases[n % 2])
        page.begin_attempt(n, n)
        facts = StepFacts(n, n, n, begin_ns, n, n, False, True, self.replica, n,
                          layout.LOSS_FINITE, n, n, n)  # fmt: skip
        page.write_step(facts)
        page.leave(self.row, *enter(page, self.row, attempt=n))
        peer = n % (PEERS + 1)
        row = page.transfer_row(self.row, peer, peer, sends=peer % 2 == 1)
        for _ in range(1 + peer):
            page.leave(row, *enter(page, row, "send", root=peer, tag=peer, attempt=n))
        page.end_attempt(n, n, begin_ns, time.monotonic_ns(), n % 3 != 0)
        page.write_note(KINDS[n % 2], note_text(n))
        page.add_time(layout.TIME_QUORUM, 1.0, 7)
        page.write_pair(layout.SPOILT, (n, n % 3, begin_ns, n, n))
        page.write_prints(n, n, [(n, n, n)])
        for counter in self.counters:
            page.add_count(counter, 1)
        self.n = n


class Reading:
    """Reads every area and checks what must hold between its numbers, and from read to read."""

    def __init__(self, path):
        self.reader = PageReader(path)
        self.started_ns = self.reader._words[layout.W_STARTED]
        self.step = self.progress = self.count = self.spell = self.lane = 0
        self.counters = {}
        self.notes = dict.fromkeys(KINDS, 0)
        self.attempt = self.dropped = 0

    def check(self):
        self.check_attempts()
        self.check_the_rest()

    def check_the_rest(self):
        now_ns = time.monotonic_ns()
        self.check_step(now_ns)
        for kind in KINDS:
            self.check_note(kind, now_ns)
        for took in self.reader.times().values():
            assert took.sum_s == pytest.approx(took.done)
            assert took.last_s == 1.0
            assert (took.sum_bytes, took.last_bytes) == (7 * took.done, 7)
            assert took.done >= self.count
            self.count = took.done
        if (spoilt := self.reader.spoilt(now_ns)) is not None:
            self.spell = n = spoilt.run
            assert (spoilt.first_step, spoilt.attempts) == (n, n)
            assert spoilt.where == layout.PLACES[n % 3]
        if (prints := self.reader.prints()) is not None:
            self.lane = n = prints.lane
            assert (prints.lineage, prints.rows) == (n, ((n, n, n),))
        for head in self.reader.heads(now_ns):
            assert 0 <= head.enqueued - head.completed <= 1
        for row in self.reader.transfers(now_ns):
            assert (row.tag, row.sends) == (row.peer, row.peer % 2)
            rounds = len(range(row.peer or PEERS + 1, self.step, PEERS + 1))
            assert row.posted >= rounds * (1 + row.peer)
            assert row.unfinished <= 1
            assert row.held in {0, row.posted}

    def check_step(self, now_ns):
        state = self.reader.step_state(now_ns)
        if state is None:
            return
        numbers = {state.commits, state.tokens, state.commit_failures}
        if state.commits:
            numbers |= {state.quorum_id, state.participants, state.committed_step, state.loss}
        assert len(numbers) == 1
        assert state.attempt == state.step
        assert 0 <= state.attempt - state.commits <= 1
        assert state.step >= self.step
        assert state.progress >= self.progress
        assert state.progress == 0 or state.phase == ("data", "forward")[state.progress % 2]
        began_ns = now_ns - self.started_ns
        told_s = sum(state.seconds.values()) + state.phase_age_s
        # a phase that began after `now` has age 0
        assert began_ns * 1e-9 - 1e-6 <= told_s <= (time.monotonic_ns() - self.started_ns) * 1e-9
        for name, total in state.counters.items():
            assert total == int(total) >= self.counters.get(name, 0)
        self.step, self.progress, self.counters = state.step, state.progress, state.counters

    def check_attempts(self):
        rows, dropped = self.reader.steps(self.attempt, 10**15)
        for row in rows:
            assert row.attempt == row.step
            assert row.committed == (row.attempt % 3 != 0)
        numbers = [row.attempt for row in rows]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[0] > self.attempt
        for before, row in itertools.pairwise(rows):
            if row.attempt == before.attempt + 1:
                spent_s = sum(row.seconds.values())
                assert spent_s == pytest.approx(before.end_age_s - row.end_age_s, abs=1e-8)
                assert row.duration_s <= spent_s + 1e-8
        self.attempt += len(rows) + dropped
        self.dropped += dropped

    def check_note(self, kind, now_ns):
        note = self.reader.note(kind, now_ns)
        if note is not None:
            text, age_s = note
            n = int(text.split(" ")[0])
            assert text == note_text(n)
            assert n % 2 == kind
            assert n >= self.notes[kind]
            assert age_s >= 0
            self.notes[kind] = n


class DiedError(Exception):
    pass


class Mortal:
    """Memory whose writer dies at a given store."""

    def __init__(self, memory, life):
        self.memory = memory
        self.life = life

    def __getitem__(self, where):
        return self.memory[where]

    def __setitem__(self, where, what):
        if self.life[0] == 0:
            raise DiedError
        self.life[0] -= 1
        self.memory[where] = what


def stores_of_a_round(path, rounds, life):
    """Write some rounds, then one more whose writer dies; how many stores it had left."""
    everything = Everything(PageWriter.create(path, identity(), 1))
    for _ in range(rounds):
        everything.round()
    left = [life]
    page = everything.page
    page._words = Mortal(page._words, left)
    page._bytes = Mortal(page._bytes, left)
    page._counters = Mortal(page._counters, left)
    try:
        everything.round()
    except DiedError:
        return None
    return left[0]


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_a_writer_may_die_at_any_store_and_what_is_read_is_whole(tmp_path, rounds):
    for life in itertools.count():
        path = tmp_path / f"{life}.page"
        left = stores_of_a_round(path, rounds, life)
        reading = Reading(path)
        reading.check()
        last = {reading.step, reading.attempt, reading.count, reading.spell, reading.lane}
        assert last <= {rounds, rounds + 1}
        for n in range(max(1, rounds - 1), rounds + 1):
            assert reading.notes[KINDS[n % 2]] in {n, n + 2}
        assert reading.dropped == 0
        path.unlink()
        if left is not None:
            break
    assert life > 25  # the death came everywhere


class Interrupted:
    """Memory in which the writer gets on while the reader is at a given load, or halfway in it."""

    def __init__(self, memory, turn):
        self.memory = memory
        self.turn = turn

    def __getitem__(self, where):
        if not isinstance(where, slice) or where.stop - where.start < 16:
            word = self.memory[where]
            self.turn()
            return word
        half = (where.start + where.stop) // 16 * 8  # at a word: those are never torn
        first = bytes(self.memory[where.start : half])
        self.turn()
        return first + bytes(self.memory[half : where.stop])


class Turns:
    """Lets the writer do some rounds at one of the reader's loads."""

    def __init__(self, act, at):
        self.act = act
        self.at = at
        self.loads = 0

    def __call__(self):
        self.loads += 1
        if self.loads == self.at:
            self.act()


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6])
def test_a_writer_may_get_on_at_any_load_and_what_is_read_is_whole(tmp_path, rounds):
    def write():
        for _ in range(rounds):
            everything.round()

    path = tmp_path / "a.page"
    everything = Everything(PageWriter.create(path, identity(), 1))
    write()
    for at in itertools.count(1):
        reading = Reading(path)
        reading.attempt = max(0, everything.n - 5)
        reading.check()  # what was read once is never unsaid
        turns = Turns(write, at)
        reader = reading.reader
        reader._map, reader._words = (
            Interrupted(reader._map, turns),
            Interrupted(reader._words, turns),
        )
        reading.check()
        assert reading.dropped == 0
        if turns.loads < at:
            break
    assert at > 80  # everywhere


FULL_SPEED = """
import sys
from pathlib import Path
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from tests.worker_server.pages import identity
from tests.worker_server.test_page_torn import PEERS, Everything
layout.MAX_TRANSFERS = PEERS
everything = Everything(PageWriter.create(Path(sys.argv[1]), identity(), 1))
print("go", flush=True)
while True:
    everything.round()
"""


@pytest.mark.integration
def test_reads_under_a_writer_at_full_speed_stopped_and_dead_are_whole(tmp_path):
    command = [sys.executable, "-c", FULL_SPEED, str(tmp_path / "fast.page")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "go\n"
            reading = Reading(tmp_path / "fast.page")
            for _ in range(10):
                reading.check()  # mostly the ring, which is large
                for _ in range(30):
                    reading.check_the_rest()
            wait_for(lambda: reading.check() or reading.step > 1000, within_s=30, what="it goes on")
            assert reading.dropped < reading.attempt
            for _ in range(30):
                before = reading.reader.entered
                wait_for(lambda: reading.reader.entered > before, within_s=10, what="it writes")  # noqa: B023
                writer.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
                reading.check()
                writer.send_signal(signal.SIGCONT)
        finally:
            writer.kill()
    reading.check()
    entries, _ = reading.reader.ring(time.monotonic_ns())
    assert len(entries) >= layout.RING_SLOTS - 1
    assert all(entry.seq == entry.attempt for entry in entries if entry.tag is None)
