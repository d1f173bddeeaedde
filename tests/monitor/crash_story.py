"""A job with one hung group, a monitor that dies while it evicts it, and the next that goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import requests

from lightkeeper.monitor.model.eviction import Decision, Remembered
from lightkeeper.monitor.store.store import Store
from lightkeeper.worker_server.wire import to_json
from tests.monitor.crash_life import LAST, live
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, Page, page
from tests.monitor.process import TOKEN, Training
from tests.ports import free_port
from tests.waiting import wait_for

POINTS: Final = {True: 26, False: 46}
"""From which a seed chooses: a run without a crash passes about so many, with a Lighthouse whose
kill works and without."""

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(["tests.monitor.crash_life", "tests.monitor.crash_preloaded"])


@dataclass
class Outcome:
    """What was seen at the end."""

    seed: int
    died_at: list[str]
    found_alive: dict[str, int]
    """Incarnation -> requests and kills that found it alive."""
    remembered: Remembered
    shown: frozenset[str]
    """Incidents that the last life called resolved when it had nothing left to do."""
    seconds: float

    @property
    def evicts(self) -> list[Decision]:
        return [row for row in self.remembered.decisions if row.action == "evict"]


@dataclass
class World:
    """The fleet, the Lighthouse and a launcher; they outlive every monitor."""

    port: int = field(default_factory=free_port)
    fleet: FakeFleet = field(default_factory=FakeFleet)
    lighthouse: FakeLighthouse = field(default_factory=FakeLighthouse)
    kill_works: bool = True
    found_alive: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.ranks = [
            self.fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}", evict=self.evict)
            for n in range(3)
        ]
        for rank in self.ranks:
            rank.restart(f"{rank.identity.group}-one")
        self.form()
        self.lighthouse.on_kill = self.kill
        self.training = Training(*self.ranks)
        self._over = threading.Event()
        self._sidecars = threading.Thread(target=self._register, daemon=True)
        self._sidecars.start()

    def form(self) -> None:
        self.lighthouse.form(*(r.replica_id or "" for r in self.ranks if r.alive))

    def strike(self, rank: FakeRank) -> None:
        """What ends a process: counted when it found one."""
        with self._lock:
            if not rank.alive:
                return
            name = rank.identity.incarnation
            self.found_alive[name] = self.found_alive.get(name, 0) + 1
            rank.die()
        self.form()
        threading.Timer(0.6, self.relaunch, (rank,)).start()

    def relaunch(self, rank: FakeRank) -> None:
        """As the launcher does: another process under another replica id."""
        group = rank.identity.group
        rank.replica_id = f"{group}:again"
        rank.step += 1
        rank.restart(f"{group}-two")
        self.training.hung.discard(group)
        for other in self.ranks:
            other.phase, other.phase_age_s = "forward", 0.1
        self.form()

    def evict(self, rank: FakeRank) -> Page:
        """`FakeRank.on_evict` without its checks; they are the evictors' own tests."""
        if rank.evictions[-1]["incarnation"] != rank.identity.incarnation:
            return page({"error": "another incarnation"}, 409)
        self.strike(rank)
        return page({"schema": 1, "signalled": ["SIGTERM"], "gone": True})

    def kill(self, replica_id: str) -> Page:
        for rank in self.ranks:
            if self.kill_works and rank.replica_id == replica_id:
                self.strike(rank)
        return 500, "text/plain", b"transport error"

    def _register(self) -> None:
        """As sidecars do, more often: whichever monitor is there soon knows everybody."""
        with requests.Session() as session:
            while not self._over.wait(0.6):
                for rank in self.ranks:
                    with contextlib.suppress(requests.RequestException):
                        session.post(
                            f"http://127.0.0.1:{self.port}/v1/register", timeout=1,
                            json=to_json(rank.registration()),
                            headers={"Authorization": f"Bearer {TOKEN}"},
                        )  # fmt: skip

    def close(self) -> None:
        self._over.set()
        self._sidecars.join(5)
        self.training.close()
        self.fleet.close()
        self.lighthouse.close()


@contextlib.contextmanager
def monitor(
    world: World, store: str, note: Path, fuse_at: int | None
) -> Iterator[multiprocessing.process.BaseProcess]:
    """A life that is over when the block is left."""
    process = _forked.Process(
        target=live,
        args=(f"127.0.0.1:{world.port}", store, world.lighthouse.url, fuse_at, str(note)),
    )
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join(10)


def ask(world: World, path: str) -> Any:
    with contextlib.suppress(requests.RequestException, ValueError):
        return requests.get(f"http://127.0.0.1:{world.port}{path}", timeout=2).json()
    return {}


def settled(world: World) -> frozenset[str]:
    """The incidents, all resolved, once the monitor has nothing left to do; empty before that.

    While the group hangs, what was abandoned is decided again: that is not the end.
    """
    incidents = ask(world, "/v1/incidents").get("incidents", [])
    evicts = [d for i in incidents for d in i["decisions"] if d["action"] == "evict"]
    over = (
        bool(evicts)
        and not world.training.hung
        and all(decision["state"] in ("confirmed", "failed", "abandoned") for decision in evicts)
        and all(item["state"] == "resolved" for item in incidents)
    )
    return frozenset(item["id"] for item in incidents) if over else frozenset()


def play(seed: int, store: str, folder: Path) -> Outcome:
    """The hang, one or two lives that end at a point of the seed, and one that does not."""
    dice, began = random.Random(seed), time.monotonic()
    world = World(kill_works=dice.random() < 0.5)
    points = POINTS[world.kill_works]
    fuses = [dice.randint(1, points)] if seed else []
    if dice.random() < 0.3 and fuses:
        fuses.append(dice.randint(1, points // 2))
    died_at: list[str] = []
    shown: frozenset[str] = frozenset()
    try:
        for number, fuse_at in enumerate([*fuses, None]):
            note = folder / f"note-{seed}-{number}"
            with monitor(world, store, note, fuse_at) as life:
                wait_for(
                    lambda: ask(world, "/v1/snapshot").get("ranks", [])[2:] or not life.is_alive(),
                    within_s=90, what=f"seed {seed}: it sees the fleet",
                )  # fmt: skip
                if number == 0:
                    steps = world.training.ranks[0].step
                    wait_for(
                        lambda n=steps: world.training.ranks[0].step > n + 10,
                        within_s=30, what="they train",
                    )  # fmt: skip
                    world.training.hung.add("rg_1")
                answer = wait_for(
                    lambda: settled(world) or not life.is_alive(),
                    within_s=150, what=f"seed {seed}, died at {died_at}: it is settled",
                )  # fmt: skip
                shown = answer if isinstance(answer, frozenset) else shown
            died_at.append(note.read_text() if note.exists() else f"? exit {life.exitcode}")
            # not by the exit status: the fork server gives 255 where it lost it
            if not note.exists() or died_at[-1].endswith(LAST):
                break
        reading = Store(store)
        remembered = reading.remembered()
        reading.close()
    finally:
        world.close()
    took_s = time.monotonic() - began
    return Outcome(seed, died_at, dict(world.found_alive), remembered, shown, took_s)
