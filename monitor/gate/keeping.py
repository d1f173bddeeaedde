"""A worker tells its keeper which connections it has and who asks for a quorum on them.

Never blocks: where the keeper does not keep up, something is not kept, and is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from monitor.gate import bequest
from monitor.gate.bequest import Asked, Page
from monitor.gate.denial import denials_json
from monitor.gate.stream import Stream

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore
    from monitor.gate.group_side import GroupSide

_ALIVE_S: Final = 1.0


class Keeping:
    """The worker's end of the channel."""

    def __init__(self, channel: socket.socket, page: Page, inherited: Iterable[int] = ()) -> None:
        """`inherited`: keys in use."""
        channel.setblocking(False)
        self._channel = channel
        self.page = page
        self._numbers = itertools.count(time.monotonic_ns() & 0xFFFFFFFFFF)
        used = {key & 0xFFFF for key in inherited}
        self._slots = [slot for slot in range(bequest.SLOTS) if slot not in used]
        self.missed = 0
        """What the keeper did not take."""
        self.kept = True
        """Whether there is a keeper."""

    def client(self, transport: asyncio.Transport) -> int:
        """A client has connected; its key."""
        slot = self._slots.pop() if self._slots else 0xFFFF
        key = next(self._numbers) << 16 | slot
        self.page.write(key, 0, 0, 0)
        found = transport.get_extra_info("socket")
        if found is not None:
            self._send(bequest.CLIENT + key.to_bytes(8, "big"), found.fileno())
        return key

    def left(self, key: int) -> None:
        """It is gone."""
        if key & 0xFFFF < bequest.SLOTS:
            self._slots.append(key & 0xFFFF)
        self._send(bequest.LEFT + key.to_bytes(8, "big"))

    def asked(self, key: int, asked: Asked) -> None:
        """It asks for a quorum."""
        body = asked.to_bytes()
        if body is not None:
            self._send(bequest.ASKED + key.to_bytes(8, "big") + body)

    def over(self, key: int, number: int) -> None:
        """It no longer does."""
        self._send(bequest.OVER + key.to_bytes(8, "big") + number.to_bytes(4, "big"))

    def denied(self, core: GateCore) -> None:
        """Another list is in force."""
        body = json.dumps(denials_json(core.doorman.denials)).encode()
        if len(body) >= bequest.DATAGRAM_MAX:
            self.missed += 1
            body = b""  # an older list would be worse than none, which the monitor teaches anew
        self._send(bequest.DENIED + body)

    def numbered(self, core: GateCore) -> None:
        """The groups are about to be told another quorum id."""
        self._send(bequest.NUMBERS + json.dumps(core.quorum_ids.to_json()).encode())

    def _send(self, data: bytes, *files: int) -> None:
        if not bequest.send(self._channel, data, *files):
            self.missed += 1

    def reports_to(self, channel: socket.socket) -> socket.socket:
        """From now on; who it was before."""
        before, self._channel = self._channel, channel
        return before

    async def stay_alive(self) -> None:
        """Say so now and then, for as long as there is somebody to say it to."""
        gone = asyncio.get_running_loop().create_task(self._until_gone())
        try:
            while not gone.done():
                self._send(bequest.ALIVE)
                await asyncio.wait([gone], timeout=_ALIVE_S)
        finally:
            gone.cancel()

    async def _until_gone(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if not await loop.sock_recv(self._channel, 4096):
                    return
            except OSError:
                return


def told(client: GroupSide, stream: Stream) -> Asked:
    """A quorum request as it is kept."""
    return Asked(
        number=stream.number,
        path=stream.call.path,
        timeout_s=stream.call.timeout_s,
        block=stream.call.block,
        data=bytes(stream.data),
        began_s=stream.began_s,
        connection_window=client.room,
        initial_window=client.initial_room,
    )
