"""Dead connections of the rank's Manager to the Lighthouse are shut, so that it connects again.

Theory of operation. When the host of the Lighthouse or of its gate is lost, nothing closes the
connections to it. HTTP/2's keep-alive gives up after 80 s, later than the quorum timeout (60 s), so
TorchFT does not ask again in time. A new connection to a host that is gone is tried for 60 s,
without a heartbeat meanwhile.

That an answer is missing shows nothing: a request for a quorum waits while others train. That no
acknowledgement comes does: a kernel acknowledges for a process that is slow, stopped or full. So a
connection is suspect if its bytes or its SYN were sent again several times and nobody has
acknowledged them for 3 s. Then the address is tried as the Manager would, by its name, up to the
first frame of HTTP/2, which no kernel sends. Without an answer nothing is done: the network or the
Lighthouse is away, and a new connection would find nobody. With an answer the old connection has
one more try, since a network that was away may be back: it is dead if that try is not acknowledged
either, or is more than 2 s ahead.

That is harmless only where TorchFT asks again (`TORCHFT_QUORUM_RETRIES`), so else, and in a TorchFT
that was not tried, nothing is shut; nor while the monitor observes or is paused. Each connection is
shut once, and no two acts come within 5 s.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.settings import QUORUM_RETRIES
from lightkeeper.worker_server.sidecar.network import TcpSocket
from lightkeeper.worker_server.wire import Connection, Trouble

ENVIRONMENT: Final = "LIGHTKEEPER_ASK_AGAIN"
_TRIED: Final = (("torchft", "0.2.0"), ("torchft-nightly", "2026.10.26"))
_DEAD_S: Final = 3.0
"""A retransmission timer has run out four times by then, that of a SYN twice."""
_SOON_S: Final = 2.0
_EVERY_S: Final = 5.0
_ANSWER_S: Final = 1.0
_TOLD_S: Final = 60.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_SETTINGS: Final = 4


def asks_again(environ: Mapping[str, str]) -> bool:
    """True if dead connections may be shut: TorchFT asks again, and nobody has switched it off."""
    try:
        retries = int(environ.get(QUORUM_RETRIES) or 0)
    except ValueError:
        return False
    tried = any(number == d.version for name, number in _TRIED for d in distributions(name=name))
    return retries > 0 and tried and environ.get(ENVIRONMENT) != "0"


@dataclass(eq=False)
class AskAgain:
    """Follows one rank's connections to its Lighthouse."""

    server: Callable[[], str | None]
    """HOST:PORT that the Manager asks."""
    shut: Callable[[Collection[int]], int]
    """Has the rank shut these inodes; how many."""
    on: bool

    def __post_init__(self) -> None:
        self.allowed = True
        """True while the monitor lets us; what it said last stands while it is away."""
        self._resolved = ""
        self._addresses: set[str] = set()
        """All that the server's name has led to."""
        self._answered: dict[int, int] = {}
        """Suspect -> its retries when the server answered a new connection."""
        self._ended: dict[int, tuple[float, Connection]] = {}
        """Sockets that the rank was to shut -> when it did; -inf: it did not."""
        self._acted_s = float("-inf")
        self._busy = threading.Lock()

    def look(self, broken: Iterable[tuple[TcpSocket, float]], now_s: float) -> None:
        """`broken`: the rank's sockets that nobody answers, and for how long. Never waits."""
        server = self.server() if self.on else None
        if server is None:
            return
        dead = [
            row
            for row, for_s in broken
            if for_s >= _DEAD_S and row.inode not in self._ended and self._leads_to(row, server)
        ]
        if not dead:
            self._answered.clear()
        due = dead and self.allowed and now_s - self._acted_s >= _EVERY_S
        if (due or server != self._resolved) and not self._busy.locked():
            threading.Thread(target=self._act, args=(server, dead, now_s), daemon=True).start()

    def ended(self, now_s: float) -> Iterator[Connection]:
        """What was shut in the last minute."""
        for at_s, row in tuple(self._ended.values()):
            if now_s - at_s < _TOLD_S:
                yield row.later(max(0.0, now_s - at_s))

    def _leads_to(self, row: TcpSocket, server: str) -> bool:
        address, _, port = row.peer.rpartition(":")
        return port == server.rpartition(":")[2] and address.strip("[]") in self._addresses

    def _act(self, server: str, dead: Sequence[TcpSocket], now_s: float) -> None:
        """In a thread of its own: a resolver and a connection may take long."""
        with self._busy:
            self._addresses |= _resolve(server)
            self._resolved = server if self._addresses else ""
            if not dead or not answers(server):
                return
            before = [self._answered.setdefault(row.inode, row.retries) for row in dead]
            pairs = zip(dead, before, strict=True)
            lost = [row for row, tries in pairs if row.again_s > _SOON_S or row.retries > tries]
            if lost:
                self._acted_s = now_s
                at_s = now_s if self.shut([row.inode for row in lost]) else float("-inf")
                for row in lost:
                    shut = Connection(row.local, row.peer, Trouble.SHUT, use="lighthouse")
                    self._ended[row.inode] = at_s, shut


def _resolve(server: str) -> set[str]:
    """All addresses of a HOST:PORT."""
    with contextlib.suppress(OSError, UnicodeError):
        host = server.rpartition(":")[0].strip("[]")
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {str(wire.routed(str(row[4][0]).partition("%")[0])) for row in rows}
    return set()


def answers(server: str) -> bool:
    """True if an HTTP/2 server answers a new connection within a second."""
    host, _, port = server.rpartition(":")
    try:
        address = host.strip("[]"), int(port)
        with socket.create_connection(address, timeout=_ANSWER_S) as link:
            link.sendall(_PREFACE)
            header = link.makefile("rb").read(9)
    except (OSError, ValueError):
        return False
    return len(header) == 9 and header[3] == _SETTINGS
