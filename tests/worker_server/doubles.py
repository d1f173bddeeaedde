"""What a black box reads and asks, in memory: a process, torch, stacks."""

from __future__ import annotations

import time

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.run_dir import RankFiles
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.process import Activity
from lightkeeper.worker_server.sidecar.stacks import Call, ProcessLook, Taken, ThreadLook


class FakeProcess:
    """Dies of the signals in `dies_of`; keeps what it was sent and how long it was waited for."""

    pid = 7

    def __init__(self, *dies_of):
        self.dies_of, self.sent, self.waited = dies_of, [], []
        self.dead = False
        self.state = "S"
        self.tracer = self.threads_tracer = None
        self.activity = Activity(self.pid, time.monotonic)

    def look(self, interpreter_age_s):
        if self.dead:
            return wire.Process(alive=False, state=None, dead_age_s=1.0)
        return wire.Process(
            True, self.state, interpreter_age_s=interpreter_age_s, tracer=self.tracer
        )

    def tracer_of_a_thread(self):
        return self.threads_tracer

    def wait_death(self, timeout_s):
        self.waited.append(timeout_s)
        return self.dead

    def syscall(self, thread=None):
        self.syscall_of = thread

    def send(self, signum):
        if self.dead:
            return False
        self.sent.append(signum.name)
        self.dead = signum.name in self.dies_of
        return True


class FakeTorch:
    def __init__(self):
        self.asked = 0
        self.error = None
        self.record = None
        self.names = {"fr_trace_json", "ping"}

    def handlers(self):
        return frozenset(self.names)

    def ask(self, question):
        self.asked += 1
        if self.error:
            raise SilentError(self.error)
        return self.record or {"entries": [self.asked]}


class FakeStacks:
    def __init__(self):
        self.calls = []
        self.looks = 0
        self.trains = None
        self.number = 7
        self.main = (Call("main", "/job/train.py", 1),)
        self.error = None

    def take(self, *, pause, native=False):
        self.calls.append((pause, native))
        if self.error:
            raise SilentError(self.error)
        return Taken("main (train.py:1)\n", time.monotonic())

    def look(self, trains=0):
        self.looks += 1
        self.trains = trains
        if self.error:
            raise SilentError(self.error)
        taken = Taken("main (train.py:1)\n", time.monotonic())
        return ProcessLook(taken, ThreadLook("", self.number, self.main), owns_gil=False)


class Bench:
    def __init__(self, path):
        self.process, self.torch, self.stacks = FakeProcess(), FakeTorch(), FakeStacks()
        self.box = BlackBox(
            PageReader(path), self.process, self.torch, self.stacks, RankFiles(path)
        )
