"""`-m lightkeeper.worker_server.preflight_probe`: what is measured, in a process that may hang.

Its plan is its argument, in JSON; it writes a line for each thing it begins, finds and
measures. An alarm ends it at its limit, the kernel with its parent, and its parent kills it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lightkeeper.worker_server.check_host import MATMUL, MEMORY, Figure, HostFigures, rounds

_WARM_S: Final = {"cpu": 0.3, "cuda": 2.0}
"""Clocks of an idle GPU need about 2 s."""
_BLOCK_S: Final = 0.5
"""Each of three tries lasts several periods of a cgroup's CPU limit (0.1 s)."""
_EDGE: Final = {"cpu": 384, "cuda": 8192}
_COPY_BYTES: Final = {"cpu": 256 * 2**20, "cuda": 2**30}
"""More than a cache."""
_LINK_BYTES: Final = {"cpu": 4 * 2**20, "cuda": 2**30}
"""Slow InfiniBand links show in messages of a GiB."""
_ROOM_BYTES: Final = 16 * 2**20
_STUCK_S: Final = 10.0
_ROUNDS_MOST: Final = 8
_PARENT: Final = os.fdopen(os.dup(1), "w")


def _tell(**line: object) -> None:
    _PARENT.write(json.dumps(line) + "\n")
    _PARENT.flush()


def _rates(
    work: Callable[[], object], amount: float, tries: int, least_s: float = 0
) -> list[float]:
    """Amount a second in each try, which repeats the work for at least `least_s` seconds."""
    rates = []
    for _ in range(tries):
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < least_s:
            work()
            count += 1
        rates.append(amount * count / (time.perf_counter() - begin))
    return rates


def _each(work: Callable[[int], None], numbers: Collection[int]) -> None:
    """Call it for all numbers at once, in threads.

    Raises:
        RuntimeError: what one of them raised, with its number.
    """
    with ThreadPoolExecutor(len(numbers)) as pool:
        jobs = [(number, pool.submit(work, number)) for number in numbers]
    for number, job in jobs:
        if exc := job.exception():
            raise RuntimeError(f"device {number}: {exc}") from exc


def _guarded(
    check: str, work: Callable[[], None], limit_s: float = _STUCK_S, state: str = "bad"
) -> None:
    """Do it in a thread that may be left behind; an error or a hang is a note of this state."""

    def do() -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001  a figure that is missing, not the end
            _tell(note=[check, state, " ".join(f"{type(exc).__name__}: {exc}".split())])

    _tell(doing=check)
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        _tell(note=[check, state, f"no answer in {limit_s:.0f} s"])


def _witness(witness: Any) -> None:
    for testimony in witness.look((), time.monotonic()):
        state = "bad" if testimony.weight == "broken" else "note"
        _tell(note=[witness.name, state, testimony.text])


def _room(where: str) -> None:
    room = os.statvfs(where)
    if room.f_bavail * room.f_frsize < _ROOM_BYTES:
        _tell(note=["room", "bad", f"{where} is full"])


def _name(check: str, name: str, on_loopback: str) -> None:
    """A name that other hosts are given; `on_loopback`: the state where it leads back to this one.

    Raises:
        OSError: it leads nowhere.
    """
    addresses = sorted(
        {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)}
    )
    state = on_loopback if all(ip_address(each).is_loopback for each in addresses) else "fine"
    _tell(note=[check, state, f"{name} leads to {', '.join(addresses)}"])


def _reach(lighthouse: str) -> None:
    parts = urlsplit(lighthouse)
    where = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection(where, 3.0).close()
    _tell(note=["Lighthouse", "fine", f"{lighthouse} answers"])


class HostProbe(NamedTuple):
    """One look at this host; `kind` is `cpu` or `cuda`."""

    torch: Any
    kind: str
    figures: list[Figure]

    def measured(self, name: str, unit: str, value: float, device: str = "") -> None:
        self.figures.append(Figure(name, unit, value, device))
        _tell(figure=self.figures[-1])

    def device(self, number: int) -> Any:
        return self.torch.device("cpu") if self.kind == "cpu" else self.torch.device("cuda", number)

    def finish(self, number: int) -> None:
        """Wait for what a GPU does."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(number)

    def devices(self) -> int:
        return self.torch.cuda.device_count() if self.kind == "cuda" else 1

    def compute(self) -> None:
        """A matrix multiplication on each device, on all at once."""
        on_cpu, edge, rates = self.kind == "cpu", _EDGE[self.kind], dict[str, list[float]]()

        def multiply(number: int) -> None:
            if on_cpu:
                os.sched_setaffinity(0, {number})  # this thread alone
            left = self.torch.ones(edge, edge, device=self.device(number))
            left = left if on_cpu else left.bfloat16()
            out = self.torch.empty_like(left)

            def work() -> None:
                self.torch.mm(left, left, out=out)
                self.finish(number)

            _rates(work, 1.0, 1, _WARM_S[self.kind])
            rate = _rates(work, 2 * edge**3 / 1e9, 3, _BLOCK_S)
            rates[f"{'core' if on_cpu else 'GPU'} {number}"] = rate

        _each(multiply, os.sched_getaffinity(0) if on_cpu else range(self.devices()))
        for name, rate in sorted(rates.items()):
            self.measured(MATMUL, "GFLOP/s", max(rate), name)
        self.measured(MATMUL, "GFLOP/s", max(map(sum, zip(*rates.values(), strict=True))))

    def copies(self) -> None:
        """Memory bandwidth: of the host, or of each GPU."""
        size, rates = _COPY_BYTES[self.kind], []
        for number in range(self.devices()):
            left = self.torch.ones(size, dtype=self.torch.uint8, device=self.device(number))
            right = self.torch.zeros_like(left)

            def work(number: int = number, left: Any = left, right: Any = right) -> None:
                right.copy_(left)
                self.finish(number)

            rates.append(max(_rates(work, size / 1e9, 12)))
            if self.kind == "cuda":
                self.measured(MEMORY, "GB/s", rates[-1], f"GPU {number}")
        self.measured(MEMORY, "GB/s", min(rates))

    def link(self, store: Any, me: int, peer: int) -> float:
        """MB/s to a peer and back, in the best of some tries."""
        first, dist = me < peer, self.torch.distributed
        make = dist.ProcessGroupNCCL if self.kind == "cuda" else dist.ProcessGroupGloo
        group, there = make(store, int(not first), 2, timedelta(seconds=_STUCK_S)), int(first)
        steps = (group.send, group.recv) if first else (group.recv, group.send)
        tensor = self.torch.ones(
            _LINK_BYTES[self.kind], dtype=self.torch.uint8, device=self.device(0)
        )

        def there_and_back() -> None:
            for step in steps:
                step([tensor], there, 0).wait()
            self.finish(0)

        return max(_rates(there_and_back, 2 * len(tensor) / 1e6, 4))


class Meeting:
    """The hosts of the launch at a store of their own; the first to be able to holds it."""

    def __init__(self, make: Callable[..., Any], plan: Mapping[str, Any], end_s: float) -> None:
        self._end_s, address, port = end_s, plan["store_host"], plan["store_port"]
        wait = timedelta(seconds=plan["arrive_s"])
        try:
            family = socket.getaddrinfo(address, None)[0][0]
            with socket.socket(family) as ours:  # one of this host's addresses?
                ours.bind((address, 0))
            self.store = make(address, port, None, True, timeout=wait, wait_for_workers=False)
            self.holds = True
        except (OSError, RuntimeError):  # not ours, or a neighbour on this host came first
            self.store = make(address, port, None, False, timeout=wait)
            self.holds = False
        self.number = self.store.add("arrived", 1) - 1
        self.store.set(f"name/{self.number}", json.dumps([plan["host"], self.number]))

    def agreed(self, key: str, prefix: str, count: int, end_s: float) -> list[Any]:
        """The values of all that are there in time: who holds the store closes the list."""
        if self.holds:
            keys = [f"{prefix}/{number}" for number in range(count)]
            while time.monotonic() < end_s and not self.store.check(keys):
                time.sleep(0.05)
            there = [name for name in keys if self.store.check([name])]
            self.store.set(key, json.dumps([json.loads(self.store.get(name)) for name in there]))
        self.store.wait([key], timedelta(seconds=max(1.0, end_s - time.monotonic() + 5)))
        agreed: list[Any] = json.loads(self.store.get(key))
        return agreed

    def leave(self, count: int) -> None:
        """The holder goes last."""
        self.store.add("left", 1)
        while self.holds and time.monotonic() < self._end_s and self.store.add("left", 0) < count:
            time.sleep(0.05)


def _meet(
    make: Callable[..., Any], plan: Mapping[str, Any], end_s: float
) -> tuple[Meeting, list[str]] | None:
    _tell(doing="waiting for the other hosts")
    try:
        meeting = Meeting(make, plan, end_s)
        arrive_s = time.monotonic() + plan["arrive_s"]
        world = meeting.agreed("world", "name", plan["hosts"], arrive_s)
    except Exception as exc:  # noqa: BLE001  then this host is looked at alone
        said = f"{plan['store_host']}:{plan['store_port']}: {exc}".partition("\n")[0]
        _tell(note=["hosts", "missing", said])
        return None
    names, numbers = [name for name, _ in world], [number for _, number in world]
    if len(world) < plan["hosts"]:
        said = f"{', '.join(names)} came in time, of {plan['hosts']}"
        _tell(note=["hosts", "missing", said])
    if meeting.number not in numbers:
        _tell(note=["hosts", "missing", "the others began without this one: it came too late"])
        return None
    meeting.number = numbers.index(meeting.number)
    return (meeting, names) if len(names) > 1 else None


def _links(
    probe: HostProbe, meeting: Meeting, names: list[str], until_s: float
) -> dict[str, float]:
    me, links = meeting.number, dict[str, float]()
    for turn, met in enumerate(rounds(len(names), _ROUNDS_MOST)):
        if me not in met or time.monotonic() > until_s:
            continue
        peer, name = met[me], names[met[me]]
        store = probe.torch.distributed.PrefixStore(f"turn {turn} {min(me, peer)}", meeting.store)
        links[name] = 0.0

        def look(store: Any = store, peer: int = peer, name: str = name) -> None:
            links[name] = probe.link(store, me, peer)

        _guarded(f"link to {name}", look, 2 * _STUCK_S, "note")
    return links


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.dup2(2, 1)  # NCCL writes to standard output
    plan = json.loads(sys.argv[1])
    signal.alarm(int(plan["limit_s"]) + 1)
    end_s, host = time.monotonic() + plan["limit_s"], plan["host"]
    with suppress(ImportError):  # where the machine's witnesses are not installed
        panel = importlib.import_module("lightkeeper.worker_server.sidecar.witnesses.panel")
        for witness in panel.witnesses():
            _guarded(witness.name, partial(_witness, witness), 2.0, "cannot be read")
    for where in (".", "/dev/shm"):  # noqa: S108 - looked at
        _guarded(f"room in {where}", partial(_room, where))
    if plan["store_host"]:
        state = "bad" if plan["hosts"] > 1 else "note"
        _guarded("store's name", partial(_name, "store's name", plan["store_host"], state))
        own = partial(_name, "host's name", socket.gethostname(), "note")  # for TorchFT and gloo
        _guarded("host's name", own, state="note")
    if plan["lighthouse"]:
        _guarded("Lighthouse", partial(_reach, plan["lighthouse"]))
    _tell(doing="loading torch")
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        _tell(note=["torch", "cannot be read", "not installed: nothing is compared"])
        return
    torch.set_num_threads(1)
    probe = HostProbe(torch, "cuda" if torch.cuda.is_available() else "cpu", [])
    met = _meet(torch.distributed.TCPStore, plan, end_s) if plan["hosts"] > 1 else None
    limit_s = plan["limit_s"] / 3
    _guarded(MATMUL, probe.compute, limit_s)
    _guarded(MEMORY, probe.copies, limit_s)
    if met is None:
        return
    meeting, names = met
    links = _links(probe, meeting, names, end_s - 12)
    report = HostFigures(host, (*probe.figures,), links)
    meeting.store.set(f"report/{meeting.number}", json.dumps(report))

    def share() -> None:
        _tell(reports=meeting.agreed("reports", "report", len(names), end_s - 4))
        meeting.leave(len(names))

    _guarded("comparing", share, limit_s, "note")


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that hang are left behind
