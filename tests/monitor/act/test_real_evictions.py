"""Evictions for real: a Lighthouse, managers, WorkerServers and processes as they come.

What each case makes sick, and that it is out: its replica id has left the quorum, and its processes
are gone. Survivors are requests only: they ask for the next quorum when the group is evicted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest

from lightkeeper.monitor.act.evictor import Evictors, Parties
from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import HandedOver, Timeouts
from lightkeeper.monitor.model.eviction import Accused, Eviction, Rung, RungResult
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseView
from lightkeeper.worker_server.wire import PATH_STATE, Registration, parse_state
from tests.changed import replace
from tests.gate.groups import Gate
from tests.monitor.act.evictions import outcome
from tests.monitor.decided import decided, to_evict
from tests.monitor.doubles import Memory
from tests.monitor.lighthouses import Groups, installations, lighthouse_process
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker_server.ranks import TOKEN, Rank, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
FOUND = {name: path for name, path in installations().items() if not name.startswith("0.1.")}
ID, OTHER = ReplicaId("rg_1:real"), ReplicaId("rg_0:survivor")
SCRIPT = Path(__file__).with_name("manager_rank.py")
ROOT = Path(__file__).resolve().parents[3]
HEARTBEAT_S = 1.5
TIMEOUTS = Timeouts(
    kill_s=1.0, confirm_s=20.0, look_s=1.0, pause_s=0.1, heartbeat_dead_s=HEARTBEAT_S + 1
)


class RealRank(Rank):
    """`manager_rank.py` as a child that nobody waits for: dead, it is defunct until the end."""

    def __init__(self, number: int, folder: Path, manager: list[str], *, action: str = "hang",
                 before: tuple[str, ...] = (), bind: str = "127.0.0.1",
                 token: str = TOKEN) -> None:  # fmt: skip
        self.name = RankName(f"rg_1.{number}")
        self.process = subprocess.Popen(
            [*before, sys.executable, str(SCRIPT), action, *manager],
            env=environment(
                folder, LIGHTKEEPER_TOKEN=token, LIGHTKEEPER_LINGER_S="60", RANK=str(number),
                WORLD_SIZE="2", REPLICA_GROUP="rg_1", LIGHTKEEPER_BIND=bind,
                LIGHTKEEPER_HOST="node1", LIGHTKEEPER_TORCH="0",
            ),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        super().__init__(self.process.pid, folder)

    def end(self) -> None:
        super().end()
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Scene:
    """A Lighthouse, a group of real ranks in its quorum beside a survivor, and the evictors."""

    def __init__(
        self,
        stack: ExitStack,
        tmp: Path,
        fetcher: Fetcher,
        bind: str = "127.0.0.1",
        *,
        gated: bool = False,
    ) -> None:
        self.stack, self.folder, self.fetcher = stack, tmp, fetcher
        fetcher.tokens = Tokens(TOKEN)
        self.library = FOUND[max(FOUND, key=lambda name: name == "0.2.0")]
        options = {"min_replicas": 1, "join_timeout_ms": 60_000, "quorum_tick_ms": 50}
        self.url = stack.enter_context(
            lighthouse_process(
                self.library, tmp / "lighthouse.py", free_port(), bind=bind,
                heartbeat_timeout_ms=int(HEARTBEAT_S * 1000), **options,
            )
        )  # fmt: skip
        self.light = Lighthouse(self.url, fetcher)
        self.clock = Clock()
        self.quarantine = Quarantine(self.clock, Memory())
        self.gatekeeper: Gatekeeper | None = None
        self.entrance = self.url
        if gated:
            gate = Gate(self.url, free_port(), free_port(), token=TOKEN)
            stack.callback(gate.stop)
            self.entrance = gate.url
            self.gatekeeper = Gatekeeper(
                gate.admin, fetcher, clock=self.clock, quarantine=self.quarantine, period_s=0.5,
            )  # fmt: skip
            stack.callback(self.gatekeeper.close)
        self.groups = Groups(self.entrance)
        stack.callback(self.groups.close)
        over = threading.Event()
        beats = threading.Thread(target=self._beat, args=(over,), daemon=True)
        beats.start()
        stack.callback(beats.join, 5)
        stack.callback(over.set)
        self.registry = Registry(self.clock, Memory())
        self.ranks: list[RealRank] = []

    def _beat(self, over: threading.Event) -> None:
        """The survivor is alive: an open request for a quorum alone is no heartbeat."""
        while not over.wait(0.2):
            with suppress(grpc.RpcError):
                self.groups.beat(OTHER)

    def start(self, size: int = 1, **options) -> None:
        hostname = options.pop("hostname", "127.0.0.1")
        for number in range(size):
            hosts = [str(self.library), self.entrance, ID, hostname] if number == 0 else []
            rank = RealRank(number, self.folder, hosts, **options)
            self.stack.callback(rank.end)
            self.ranks.append(rank)
        for rank in self.ranks:
            endpoint = rank.endpoint
            wait_for(lambda rank=rank: self._identity(rank), within_s=20, what="it answers")
            self.registry.register(Registration(self._identity(rank), endpoint["url"], 1000.0))

    def _identity(self, rank: RealRank):
        with suppress(OSError):
            status, text = rank.ask(PATH_STATE, headers={"Authorization": f"Bearer {TOKEN}"})
            return parse_state(json.loads(text)).identity if status == 200 else None
        return None

    def in_quorum(self, manager: str | None = None) -> None:
        """Both groups are in a quorum; `manager`: an address to be told instead of the real one."""
        address = manager or self.ranks[0].address
        self.groups.join_as({OTHER: "http://127.0.0.1:1", ID: address})
        assert self.view().ids == {ID, OTHER}

    def view(self) -> LighthouseView:
        view = self.light.look(5.0)
        assert isinstance(view, LighthouseView)
        return view

    def evict(self, timeouts: Timeouts = TIMEOUTS) -> Eviction:
        """The whole of it: asked, gone, and out of the survivors' next quorum."""
        parties = Parties(
            clock=self.clock, fetcher=self.fetcher, registry=self.registry,
            quarantine=self.quarantine, lighthouse=self.light, gate=self.gatekeeper,
            timeouts=timeouts,
        )  # fmt: skip
        evictors = Evictors(parties, handle=handle, record=lambda _: None)
        if self.gatekeeper is not None:
            self.gatekeeper.start(evictors.log.progress)
        self.stack.callback(evictors.close)
        accused = tuple(
            Accused(rank.name, (i := self.registry.get(rank.name)).identity.incarnation, i.url)
            for rank in self.ranks
        )
        evict = to_evict(IncidentId("inc-1"), GroupName("rg_1"), ID, (Host("node1"),), "a test")
        now_s = self.clock.now_s()
        evictors.log.add(eviction := decided(evict, accused, now_s))
        evictors.submit(eviction.key, HandedOver(now_s, accused))
        asking = threading.Thread(
            target=self.groups.join_as, args=({OTHER: "http://127.0.0.1:1"},), daemon=True
        )
        asking.start()
        wait_for(lambda: not evictors.active(), within_s=40, what="the ladder ends")
        asking.join(20)
        evictors.note(self.view())
        (progress,) = evictors.log.progress()
        return progress


@pytest.fixture
def make(tmp_path: Path, fetcher: Fetcher) -> Iterator[Callable[..., Scene]]:
    folder = Path("/tmp") / f"lk-{os.getpid()}-{id(tmp_path) % 9999}"
    folder.mkdir(0o700)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield partial(Scene, stack, folder, fetcher)


@pytest.fixture
def scene(make: Callable[..., Scene]) -> Scene:
    return make()


def results(progress: Eviction) -> dict[Rung, RungResult | None]:
    return {rung.rung: rung.result for rung in progress.rungs if rung.rung is not Rung.QUARANTINE}


def detail(progress: Eviction, rung: Rung) -> str:
    return outcome(progress, rung).detail


def assert_out(scene: Scene, progress: Eviction) -> None:
    assert progress.failed is None
    assert progress.out, progress
    assert scene.view().ids == {OTHER}
    for rank in scene.ranks:
        assert rank.state().process.alive is False


def test_a_kill_that_works_answers_500_and_ends_group_rank_zero_alone(scene: Scene) -> None:
    scene.start(2)
    scene.in_quorum()
    progress = scene.evict()
    assert_out(scene, progress)
    assert results(progress) == {
        Rung.LIGHTHOUSE_KILL: RungResult.WORKED,
        Rung.WORKER_EVICT: RungResult.WORKED,
    }
    said = detail(progress, Rung.LIGHTHOUSE_KILL)
    assert said == "the group's manager has ended before it answered"
    assert detail(progress, Rung.WORKER_EVICT).startswith("rg_1.1 got ")  # and no other


@pytest.mark.parametrize(
    ("sign", "state"), [(signal.SIGSTOP, "T"), (signal.SIGKILL, "Z"), (None, None)],
    ids=["stopped", "defunct and not reaped", "GIL held"],
)  # fmt: skip
def test_a_rank_that_cannot_carry_out_a_kill_is_out(scene: Scene, sign, state) -> None:
    scene.start(1, action="hang" if sign else "gil")
    scene.in_quorum()
    if sign is not None:
        scene.ranks[0].kill(sign)
        seen = scene.ranks[0].state
        wait_for(lambda: seen().process.state == state, within_s=10, what=f"state {state}")
    progress = scene.evict()
    assert_out(scene, progress)
    if state == "T":
        assert results(progress)[Rung.LIGHTHOUSE_KILL] is RungResult.SKIPPED
        assert "stopped (state T)" in detail(progress, Rung.LIGHTHOUSE_KILL)


def test_who_can_be_neither_killed_nor_ended_is_out_of_the_quorum_by_the_gate(make) -> None:
    """Its manager hangs for the Lighthouse, its WorkerServer has another token; it beats on."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as deaf:
        scene = make(gated=True)
        scene.start(1, token="another")
        scene.in_quorum(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        progress = scene.evict(replace(TIMEOUTS, confirm_s=5.0))
        assert scene.view().ids == {OTHER}
        assert progress.left_quorum_s - progress.asked_s < HEARTBEAT_S + 1.5
        assert results(progress) == {
            Rung.GATE: RungResult.WORKED,
            Rung.LIGHTHOUSE_KILL: RungResult.FAILED,
            Rung.WORKER_EVICT: RungResult.FAILED,
            Rung.PAGE: RungResult.SKIPPED,
        }
        assert not progress.out  # its process lives: a person is needed
        assert "rg_1.0 refused (401)" in progress.failed


# -- a host that cannot be reached any more -------------------------------------------------------


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


@contextmanager
def far_host() -> Iterator[tuple[str, str, str]]:
    """A network namespace as another host: its name, our address, its address."""
    name = f"lk{os.getpid() % 100_000}"
    ours, theirs = f"{name}a", f"{name}b"
    third = os.getpid() % 250
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.SubprocessError) as exc:
        why = getattr(exc, "stderr", None) or exc
        pytest.skip(f"no network namespaces here: {str(why).strip()}")
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _ip("addr", "add", f"10.213.{third}.1/24", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", name, "addr", "add", f"10.213.{third}.2/24", "dev", theirs)
        _ip("-n", name, "link", "set", theirs, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield name, f"10.213.{third}.1", f"10.213.{third}.2"
    finally:
        _ip("netns", "del", name)


def test_a_host_that_is_cut_off_is_out_when_its_heartbeat_is_dead(make) -> None:
    with far_host() as (name, here, there):
        scene = make(bind=here)
        before = ("ip", "netns", "exec", name)
        scene.start(1, before=before, hostname=there, bind=there)
        scene.in_quorum()
        _ip("link", "set", f"{name}a", "down")
        cut_s = scene.clock.now_s()
        _ip("addr", "replace", f"{here}/24", "dev", "lo")  # the Lighthouse's own way to itself
        progress = scene.evict()
        assert progress.failed is None
        assert progress.gone_s is None
        assert progress.out, progress
        assert "host out of sight, its heartbeat is dead (rg_1.0 not seen)" in progress.confirmed
        assert scene.view().ids == {OTHER}
        assert progress.left_quorum_s - cut_s < 15
        _ip("addr", "del", f"{here}/24", "dev", "lo")
        _ip("link", "set", f"{name}a", "up")
