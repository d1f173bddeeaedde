"""What outlives a worker of the gate: its sockets, and the quorum requests under way on them.

One datagram each over a Unix socket between the keeper and its worker; a socket travels with the
datagram that names it. A request is as the client sent it, with what is needed to answer it on
the connection that it came by.
"""

from __future__ import annotations

import array
import base64
import contextlib
import json
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

DATAGRAM_MAX: Final = 192 * 1024
"""Below Linux's default for one datagram (wmem_default, 208 KiB)."""
_ASKED_MAX: Final = 64 * 1024
"""A larger quorum request is not kept: it is lost with its worker, as without a keeper."""

OPTIONS, LISTENERS, CLIENT, ASKED, OVER, LEFT, DENIED, NUMBERS, GO, ALIVE, ALL, READY = (
    b"O", b"L", b"C", b"Q", b"A", b"X", b"D", b"N", b"G", b".", b"E", b"R",
)  # fmt: skip
ORPHANS: Final = "lightkeeper-gate/2/"
"""Begins the name under which an orphan waits; the number is that of what both say."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A quorum request under way. Times are of the system's steady clock, common to processes."""

    number: int
    path: str
    timeout_s: float | None
    block: bytes
    data: bytes
    began_s: float
    connection_window: int
    initial_window: int

    def to_bytes(self) -> bytes | None:
        """As it travels; None: too large to be kept."""
        if len(self.data) + len(self.block) > _ASKED_MAX:
            return None
        return json.dumps(
            [
                self.number,
                self.path,
                self.timeout_s,
                base64.b64encode(self.block).decode(),
                base64.b64encode(self.data).decode(),
                self.began_s,
                self.connection_window,
                self.initial_window,
            ]
        ).encode()


def read_asked(data: bytes) -> Asked:
    """The inverse; both ends are ours."""
    number, path, timeout_s, block, body, began_s, window, initial = json.loads(data)
    return Asked(
        number, path, timeout_s, base64.b64decode(block), base64.b64decode(body), began_s, window,
        initial,
    )  # fmt: skip


SLOTS: Final = 16_384
_SLOT: Final = struct.Struct("=IiI")


class Page:
    """Memory that outlives a worker: for each connection the number of the last call that was
    read, and how much its client takes. Writing costs a fraction of a microsecond.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory = mmap.mmap(file, SLOTS * _SLOT.size)

    @staticmethod
    def make() -> Page:
        """An empty one."""
        file = os.memfd_create("lightkeeper-gate")
        os.ftruncate(file, SLOTS * _SLOT.size)
        return Page(file)

    def write(self, key: int, number: int, window: int, initial: int) -> None:
        """What is known of the connection with this key, whose lower bits are its slot."""
        if (slot := key & 0xFFFF) < SLOTS:
            _SLOT.pack_into(self._memory, slot * _SLOT.size, number, window, initial)

    def read(self, key: int) -> tuple[int, int, int]:
        """Number, window of the connection, window of a new stream."""
        if (slot := key & 0xFFFF) < SLOTS:
            number, window, initial = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
            return number, window, initial
        return 0, 0, 0


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel that keeps datagrams whole."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        roomy(end)
    return ends


def roomy(channel: socket.socket) -> None:
    """Room for a burst: 1,000 groups ask within a moment."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            channel.setsockopt(socket.SOL_SOCKET, option, 8 * 1024 * 1024)


def send(channel: socket.socket, data: bytes, *files: int) -> bool:
    """One datagram; False when the other end is gone or does not keep up."""
    try:
        rights: list[Any] = []
        if files:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        channel.sendmsg([data], rights)
    except OSError:
        return False
    return True


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One datagram and the files that came with it; empty when the other end is gone."""
    try:
        data, rights, _, _ = channel.recvmsg(DATAGRAM_MAX, socket.CMSG_SPACE(8 * 4))
    except ConnectionResetError:  # it was killed with something of ours unread
        return b"", []
    files = array.array("i")
    for level, kind, body in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(body[: len(body) - len(body) % files.itemsize])
    return data, list(files)


def successor_address(address: Any, pid: int | str) -> bytes:
    """Where a worker that lost its keeper waits for the next one: a name that is no file, goes with
    the worker, and that nobody else can take beforehand. `address`: a listener's, resolved.
    """
    host, port = address[:2]
    return f"\0{ORPHANS}{host}/{port}/{pid}".encode()


def peer(channel: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    told = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", told)
    return pid, user


def same_user(channel: socket.socket) -> bool:
    """Whether the other end is a process of our own user."""
    return peer(channel)[1] == os.getuid()
