"""The kernel's word of a rank's connections: real sockets, on loopback where that is enough."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar import network
from lightkeeper.worker_server.sidecar.blocked_on import awaited_by
from lightkeeper.worker_server.sidecar.network import (
    Network,
    TcpSocket,
    inodes_of,
    interfaces,
    own_addresses,
    tcp_sockets,
)
from lightkeeper.worker_server.wire import Connection, Interface, Trouble
from tests.integration.hosts import three_hosts
from tests.waiting import wait_for

TCP_INFO_BACKOFF = 4
"""Where `tcp_info` says how often the time until the next probe was doubled."""
ALWAYS: dict[str, Any] = {"what": "the kernel shows it", "within_s": 30.0}


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    """Sockets and processes that end with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


def listener(opened: contextlib.ExitStack, backlog: int = 8) -> socket.socket:
    """One that listens on loopback."""
    made = opened.enter_context(socket.socket())
    made.bind(("127.0.0.1", 0))
    made.listen(backlog)
    return made


def connected(opened: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    server = listener(opened)
    ours = opened.enter_context(socket.create_connection(server.getsockname()))
    theirs = opened.enter_context(server.accept()[0])
    return ours, theirs


def unanswered(opened: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Requests to connect that nobody answers: the queue of who listens is full."""
    server = listener(opened, 0)
    opened.enter_context(socket.create_connection(server.getsockname()))
    made = [opened.enter_context(socket.socket()) for _ in range(count)]
    for each in made:
        each.setblocking(False)
        assert each.connect_ex(server.getsockname())
    return made


def inode(of: socket.socket) -> int:
    return os.fstat(of.fileno()).st_ino


def row_of(of: socket.socket) -> TcpSocket | None:
    return next((row for row in tcp_sockets({inode(of)}) if row.inode == inode(of)), None)


def end(of: tuple[Any, ...]) -> str:
    return f"{of[0]}:{of[1]}"


def mine(uses: dict[str, str] | None = None) -> Network:
    return Network(os.getpid(), lambda: uses or {})


def look(at: Network, *, stands: bool = True) -> tuple[Connection, ...]:
    """What is odd now, by a look of this moment if one is due."""
    now_s = time.monotonic()
    at.look(now_s, stands=stands)
    return at.odd(now_s)


def program(opened: contextlib.ExitStack, text: str, *words: object) -> subprocess.Popen[str]:
    """A Python process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", text, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    opened.callback(process.communicate)
    opened.callback(process.kill)
    return process


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


# -- what the kernel shows ------------------------------------------------------------------------


def test_a_connection_to_a_peer_that_does_not_read_shows_what_is_queued_and_is_not_odd(
    opened: contextlib.ExitStack,
) -> None:
    ours, theirs = connected(opened)
    ours.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += ours.send(bytes(1 << 16))

    def settled() -> TcpSocket | None:
        sender = row_of(ours)
        assert sender is not None
        (unread,) = struct.unpack("i", fcntl.ioctl(theirs, termios.FIONREAD, bytes(4)))
        return sender if sender.queued + unread == sent else None

    sender = wait_for(settled, **ALWAYS)
    assert (sender.local, sender.peer) == (end(ours.getsockname()), end(ours.getpeername()))
    at = mine({str(inode(ours)): "across"})
    assert look(at) == ()
    shown = next(row for row in at.connections() if row.local == sender.local)
    assert (shown.peer, shown.trouble, shown.use) == (sender.peer, Trouble.NONE, "across")
    assert shown.queued == sender.queued


def test_a_connection_that_the_peer_has_closed_is_listed_until_its_own_end_closes_too(
    opened: contextlib.ExitStack,
) -> None:
    ours, theirs = connected(opened)
    local = end(ours.getsockname())
    theirs.close()
    assert local in [row.local for row in mine().connections()]
    ours.close()
    assert local not in [row.local for row in mine().connections()]


def test_a_connection_by_ipv6_is_written_with_brackets_and_its_address_without(
    opened: contextlib.ExitStack,
) -> None:
    server = opened.enter_context(socket.socket(socket.AF_INET6))
    try:
        server.bind(("::1", 0))
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    server.listen()
    port = server.getsockname()[1]
    opened.enter_context(socket.create_connection(("::1", port)))
    row = next(row for row in mine().connections() if row.peer == f"[::1]:{port}")
    assert row.address == "::1"


def test_an_ipv4_peer_of_an_ipv6_socket_has_its_ipv4_address(opened: contextlib.ExitStack) -> None:
    server = listener(opened)
    try:
        ours = opened.enter_context(socket.socket(socket.AF_INET6))
        ours.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    assert end(server.getsockname()) in [row.peer for row in mine().connections()]


def test_what_a_socket_is_for_is_known_by_its_inode_or_by_a_servers_port(
    opened: contextlib.ExitStack,
) -> None:
    (ours, _), (other, _) = connected(opened), connected(opened)
    port = f":{other.getpeername()[1]}"
    uses = {row.local: row.use for row in mine({str(inode(ours)): "within", port: "store"})
            .connections()}  # fmt: skip
    assert uses[end(ours.getsockname())] == "within"
    assert uses[end(other.getsockname())] == "store"


def test_addresses_of_the_host_are_those_by_which_others_reach_it() -> None:
    addresses = own_addresses()
    assert len(addresses) <= wire.ADDRESSES_MOST
    assert list(addresses) == sorted(addresses)
    assert not {"127.0.0.1", "::1"} & set(addresses)


# -- what is odd ----------------------------------------------------------------------------------


def test_a_request_to_connect_that_nobody_answers_is_odd_after_a_second(
    opened: contextlib.ExitStack,
) -> None:
    began_s = time.monotonic()
    asking, at = unanswered(opened, 1)[0], mine()
    (row,) = wait_for(lambda: look(at), **ALWAYS)
    assert (row.trouble, row.local) == (Trouble.UNANSWERED, end(asking.getsockname()))
    assert row.retries >= 1
    assert row.for_s <= time.monotonic() - began_s
    later = at.odd(time.monotonic() + 100.0)[0]
    assert 100.0 <= later.for_s <= time.monotonic() - began_s + 100.0


def test_of_many_that_are_odd_a_state_has_eight_and_the_network_all(
    opened: contextlib.ExitStack,
) -> None:
    many = {end(asking.getsockname()) for asking in unanswered(opened, 12)}
    at = mine()
    rows = wait_for(lambda: len(odd := look(at)) >= wire.CONNECTIONS_MOST and odd, **ALWAYS)
    assert len(rows) == wire.CONNECTIONS_MOST
    assert {row.local for row in rows} <= many

    def all_odd() -> tuple[Connection, ...]:
        shown = at.connections()
        return shown if all(row.trouble for row in shown if row.local in many) else ()

    shown = wait_for(all_odd, **ALWAYS)
    assert {row.local for row in shown[:12]} == many  # the odd ones first


READER = """\
import socket, sys
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("reads", flush=True)
while ours.recv(1 << 16): pass
"""


def test_a_peer_that_is_stopped_while_its_window_is_closed_acknowledges_and_is_not_odd(
    opened: contextlib.ExitStack,
) -> None:
    server = listener(opened)
    reader = program(opened, READER, server.getsockname()[1])
    ours = opened.enter_context(server.accept()[0])
    assert line(reader) == "reads"
    os.kill(reader.pid, signal.SIGSTOP)
    ours.setblocking(False)
    at = mine()

    def probed() -> bool:
        with contextlib.suppress(BlockingIOError):
            ours.send(bytes(1 << 20))
        troubles = {row.trouble for row in look(at) if row.local == end(ours.getsockname())}
        assert troubles <= {Trouble.SLOW}
        info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return info[TCP_INFO_BACKOFF] >= 4  # probes for 3 s or longer

    wait_for(probed, within_s=60.0, what="the kernel probes the closed window")
    assert look(at, stands=False) is not None
    row = row_of(ours)
    assert row is not None
    assert row.queued > 0
    assert row.retries < 2


ECHO = """\
import socket, sys
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
theirs = server.accept()[0]
while data := theirs.recv(1 << 16): theirs.sendall(data)
"""


def test_bytes_that_nobody_acknowledges_are_odd_while_a_link_is_down_and_no_longer(
    opened: contextlib.ExitStack, tmp_path: Path
) -> None:
    _, host, _ = opened.enter_context(three_hosts(tmp_path))

    def link(state: str) -> None:
        words = [*host.before, "ip", "link", "set", "here", state]
        subprocess.run(words, check=True, timeout=20)

    process = subprocess.Popen(
        [*host.before, sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    opened.callback(process.stdout.close)  # what holds it ends with the host
    opened.callback(process.wait, 20)
    opened.callback(process.kill)
    ours = opened.enter_context(socket.create_connection((host.address, int(line(process))), 30))
    ours.sendall(b"x" * 100)
    assert ours.recv(100, socket.MSG_WAITALL)
    at = mine({str(inode(ours)): "across"})
    assert look(at) == ()
    link("down")
    sent_s = time.monotonic()
    ours.sendall(b"y" * 192)
    (row,) = wait_for(lambda: look(at), **ALWAYS)
    assert (row.trouble, row.address) == (Trouble.UNACKNOWLEDGED, host.address)
    assert (row.queued, row.use) == (192, "across")
    assert row.retries >= 2
    # reckoned from retries, each of which the kernel makes a little late on a busy host
    assert 0.2 <= row.for_s <= time.monotonic() - sent_s + 0.5
    link("up")
    wait_for(lambda: not look(at), **ALWAYS)
    assert ours.recv(192, socket.MSG_WAITALL) == b"y" * 192


def test_what_a_rank_waits_for_is_silent_until_the_rank_moves(opened: contextlib.ExitStack) -> None:
    (ours, theirs), at = connected(opened), mine()
    theirs.sendall(b"x")
    at.awaited = inode(ours)
    now_s = time.monotonic()
    at.look(now_s, stands=True)
    assert [row.trouble for row in at.odd(now_s)] == [Trouble.SILENT]
    at.look(now_s + 0.1, stands=False)  # at once: it is wrong from now on
    assert at.odd(now_s + 0.1) == ()


def made_up(busy_s: float, acknowledged: int, own: int) -> TcpSocket:
    return TcpSocket(
        own, "10.0.0.1:1", "10.0.0.2:2", 1, 0, 10**6, 0.01, 0.2, 0.01, 0.01, 0.001, 10**9,
        acknowledged, busy_s,
    )  # fmt: skip


def test_a_groups_connection_that_is_busy_for_much_of_the_time_is_slow_with_its_rate(
    opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours, _), (data, _) = connected(opened), connected(opened)
    at, now_s = mine({str(inode(ours)): "across", "odd": "across"}), time.monotonic()
    seen: list[Connection] = []
    for second, busy_s, acknowledged in (
        (0, 5.0, 0), (5, 5.1, 900_000), (10, 9.1, 940_000), (15, 14.1, 990_000),
        (20, 14.2, 1_890_000),
    ):  # fmt: skip
        rows = [made_up(busy_s, acknowledged, inode(each)) for each in (ours, data)]
        monkeypatch.setattr(network, "tcp_sockets", lambda _, rows=rows: iter(rows))
        at.look(now_s + second, stands=False)
        seen += at.odd(now_s + second)
    assert [row.trouble for row in seen] == [Trouble.SLOW] * 2
    assert [(row.rate, round(row.for_s, 3)) for row in seen] == [(10_000, 5.0), (10_000, 10.0)]
    assert [(round(row.busy, 3), row.best) for row in seen] == [(0.8, 9_000_000), (1.0, 9_000_000)]


def test_a_healthy_rank_is_looked_at_every_five_seconds_and_one_that_stands_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    at, now_s = mine(), time.monotonic()

    def looked(second: float, *, stands: bool) -> None:
        monkeypatch.setattr(network, "tcp_sockets", lambda _: asked.append(second) or iter([]))
        at.look(now_s + second, stands=stands)

    for second in range(11):
        looked(second, stands=False)
    assert asked == [0, 5, 10]
    for second in range(11, 14):
        looked(second, stands=True)
    assert asked[3:] == [11, 12, 13]


# -- whose ----------------------------------------------------------------------------------------


FAMILY = """\
import os, socket, subprocess, sys
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(os.fstat(ours.fileno()).st_ino, flush=True)
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
sys.stdin.read()
"""


def test_a_ranks_connections_are_its_own_and_its_childrens_and_nobody_elses(
    opened: contextlib.ExitStack,
) -> None:
    server = listener(opened)
    connected(opened)
    parent = program(opened, FAMILY, server.getsockname()[1], FAMILY)
    own, childs = int(line(parent)), int(line(parent))
    assert inodes_of(parent.pid) == {own, childs}
    rows = Network(parent.pid, dict).connections()
    assert {row.peer for row in rows} == {end(server.getsockname())}
    assert len(rows) == 2


def test_a_process_that_is_gone_has_no_sockets_and_waits_for_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert inodes_of(process.pid) == frozenset()
    assert awaited_by(process.pid, None) is None


RECEIVES = """\
import os, socket, sys, threading, time
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
ours.settimeout(float(sys.argv[2]) or None)
def wait():
    print(os.fstat(ours.fileno()).st_ino, threading.get_native_id(), flush=True)
    ours.recv(1)
if sys.argv[3] == "main":
    wait()
else:
    threading.Thread(target=wait).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("thread", ["main", "another"])
@pytest.mark.parametrize("limit_s", [0, 600], ids=["for ever", "with a timeout, in poll"])
def test_the_socket_that_a_thread_waits_for_is_found_by_its_system_call(
    opened: contextlib.ExitStack, thread: str, limit_s: int
) -> None:
    server = listener(opened)
    process = program(opened, RECEIVES, server.getsockname()[1], limit_s, thread)
    awaited, number = map(int, line(process).split())
    if not Path(f"/proc/{process.pid}/syscall").exists():
        pytest.skip("this kernel has no /proc/PID/syscall")
    wait_for(lambda: awaited_by(process.pid, number) == awaited, **ALWAYS)
    if thread == "another":
        assert awaited_by(process.pid, None) is None  # it sleeps


# -- where the kernel says no ---------------------------------------------------------------------


def test_an_error_of_the_kernel_is_raised_with_its_words() -> None:
    with pytest.raises(OSError, match=r"."):
        list(network._messages(socket.NETLINK_ROUTE, 9999, bytes(8)))


def test_a_kernel_that_cannot_be_asked_is_told_and_what_was_seen_last_is_kept(
    opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = connected(opened)
    at = mine()
    at.awaited = inode(ours)
    now_s = time.monotonic()
    at.look(now_s, stands=True)
    assert (len(at.odd(now_s)), at.error) == (1, None)

    def forbidden(*_: object) -> Iterator[Any]:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(network, "_messages", forbidden)
        at.look(now_s + 1, stands=True)
        assert at.error == "Operation not permitted"
        assert [row.trouble for row in at.connections()] == [Trouble.SILENT]
        assert at.age_s(now_s + 1) == 0.0
    at.look(now_s + 2, stands=True)
    assert at.error is None


def test_an_answer_that_is_cut_or_makes_no_sense_ends_the_dump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for answer in (b"", b"\0" * 16, b"\x14\0\0\0", network._HEADER.pack(2**31, 20, 0, 1, 0)):
        served = Served([answer, network._HEADER.pack(16, network._DONE, 0, 1, 0)])
        monkeypatch.setattr(network.socket, "socket", served)
        list(network._messages(network._SOCK_DIAG, 20, b""))


class Served:
    """A netlink socket that says this."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.recv: Callable[[int], bytes] = lambda _: self.answers.pop(0)

    def __call__(self, *_: object) -> Served:
        return self

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def send(self, _: bytes) -> None: ...


# -- interfaces -----------------------------------------------------------------------------------


def tree(root: Path, **files: object) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_interfaces_are_listed_with_their_errors_without_loopback_and_infiniband_after_them(
    tmp_path: Path,
) -> None:
    net = tree(
        tmp_path / "net", lo__type=772, lo__operstate="unknown",
        eth1__type=1, eth1__operstate="down", eth1__carrier_changes=7,
        eth0__type=1, eth0__operstate="up", eth0__carrier_changes=3,
        eth0__statistics__rx_errors=2, eth0__statistics__tx_errors=5,
        tun0__type=65534, tun0__operstate="unknown", tun0__carrier_changes="odd",
    )  # fmt: skip
    ib = tree(
        tmp_path / "ib", mlx5_1__ports__1__state="1: DOWN", mlx5_0__ports__1__state="4: ACTIVE",
        mlx5_0__ports__1__counters__link_downed=2, mlx5_0__ports__1__counters__symbol_error=40,
        mlx5_0__ports__1__counters__port_xmit_wait=99,
    )  # fmt: skip
    assert interfaces(net, ib) == (
        Interface("eth0", True, 3, 7), Interface("eth1", False, 7, 0), Interface("tun0", True),
        Interface("mlx5_0/1", True, 2, 42), Interface("mlx5_1/1", False),
    )  # fmt: skip


def test_a_host_without_sys_has_no_interfaces(tmp_path: Path) -> None:
    assert interfaces(tmp_path / "net", tmp_path / "ib") == ()


def test_interfaces_of_this_machine_are_read() -> None:
    names = [row.name for row in interfaces()]
    assert "lo" not in names
    assert len(names) == len(set(names))


# -- stores that refuse ----------------------------------------------------------------------------


def joins(server: object) -> Network:
    at = Network(os.getpid(), lambda: {"joining": server} if server else {})
    at.look(time.monotonic() + 10.0, stands=True)
    return at


def test_a_store_to_which_a_waiting_rank_has_no_connection_is_named_with_its_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    at = joins(f"localhost:{port}")

    def resolved():
        at.look(time.monotonic() + 20.0, stands=True)
        return [row.peer for row in at.odd(0.0)] == [f"localhost=127.0.0.1:{port}"]

    wait_for(resolved, **ALWAYS)
    (row,) = at.odd(0.0)
    assert (row.trouble, row.use) == (Trouble.MISSING, "store")


def test_one_that_is_connected_to_its_store_misses_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = server.getsockname()
        with socket.create_connection(end):
            assert joins(f"127.0.0.1:{end[1]}").odd(0.0) == ()


def test_a_name_that_leads_to_loopback_is_told_though_somebody_listens_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            at = Network(os.getpid(), lambda: {"joining": f"localhost:{port}"})

            def told():
                at.look(time.monotonic() + 20.0, stands=True)
                return at.odd(0.0)

            (row,) = wait_for(told, **ALWAYS)
    assert (row.peer, row.trouble) == (f"localhost=127.0.0.1:{port}", Trouble.SILENT)


@pytest.mark.parametrize("server", ["", None, 7, "no port", "a b:1", "x:99999999", "x" * 99 + ":1"])
def test_an_odd_server_is_none(server):
    assert joins(server).odd(0.0) == ()


def test_who_trains_is_not_asked_for_its_store():
    at = Network(os.getpid(), lambda: {"joining": "127.0.0.1:1"})
    at.look(time.monotonic() + 10.0, stands=False)
    assert at.odd(0.0) == ()
