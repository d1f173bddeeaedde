"""Whether the Lighthouse is there, and whether it knows its groups again after it was away.

Theory of operation. A Lighthouse that was restarted knows nobody. The first quorum request that
reaches it would make a quorum of one where `--min_replicas` allows it, and with that a second job
beside the others. So after a loss heartbeats go first: quorum requests wait until everybody who
was alive before has had a heartbeat answered by the Lighthouse that came back, or `SETTLE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from monitor.gate.doorman import Ruling
from monitor.gate.ledger import Entry
from monitor.gate.lighthouse_side import LighthouseSide
from monitor.names import ReplicaId

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore
    from monitor.gate.group_side import GroupSide

SETTLE_S: Final = 2.0
"""After its return: a manager's heartbeat comes every 0.1 s, or was held and goes first."""
ALIVE_S: Final = 5.0
"""Whoever sent a heartbeat so shortly before the loss was alive; TorchFT's own timeout."""
_CONNECT_S: Final = 5.0
_KNOCK_S: Final = 0.1
"""Between two looks whether a Lighthouse that is away is back."""
_LOOK_S: Final = 1.0
_BURST_S: Final = 1.0
"""Losing half of all connections within this time means that the Lighthouse itself went."""
DEAF_MS: Final = 10_000
"""A Lighthouse that acknowledges nothing for so long is away: TCP would wait 15 minutes."""


class Lighthouse:
    """The one behind this gate."""

    def __init__(self, core: GateCore, host: str, port: int) -> None:
        self._core = core
        self.host = host
        self.port = port
        self.up: bool | None = None
        """None: nobody has looked yet."""
        self.settling = False
        self._back = asyncio.Event()
        self._sides: set[LighthouseSide] = set()
        self._lost_s: list[float] = []
        self._met: set[ReplicaId] = set()
        self._expected: set[ReplicaId] = set()
        self._strangers = 0  # clients whose names a worker that died took with it
        self._since_s = 0.0
        self._until_s: float | None = None

    async def connect(self, client: GroupSide) -> LighthouseSide:
        """A connection for this client; waits for as long as the Lighthouse is away."""
        loop = asyncio.get_running_loop()
        while True:
            if self.up is False:
                await self._back.wait()
            try:
                async with asyncio.timeout(_CONNECT_S):
                    transport, made = await loop.create_connection(
                        lambda: LighthouseSide(self._core, client), self.host, self.port
                    )
            except OSError:  # TimeoutError is one
                self._failed()
                continue
            if made.closed:  # within the turn in which it was made
                self._failed()
                continue
            found = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAF_MS)
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            self._sides.add(made)
            self._came()
            return made

    def _failed(self) -> None:
        self._core.ledger.counts.upstream_retries += 1
        self._went_away()

    async def watch(self) -> None:
        """Knock while it is away, look now and then while nobody is connected to it."""
        while True:
            if not self._sides or self.up is False:  # one attempt may fail while others are there
                await self._knock()
            await asyncio.sleep(_KNOCK_S if self.up is False else _LOOK_S)

    async def _knock(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            self._went_away()
            return
        writer.close()
        self._came()

    def _came(self) -> None:
        if self.up is not True:
            self.up = True
            self._back.set()
            if self.settling:
                self._until_s = self._core.now_s() + SETTLE_S

    def _went_away(self) -> None:
        if self.up is not False:
            self.up = False
            self._unsettle()
        self._back.clear()

    def left(self, side: LighthouseSide, *, lost: bool) -> None:
        """A connection has ended; `lost`: not by us."""
        known = side in self._sides
        self._sides.discard(side)
        if not lost or not known:  # unknown: its client left while it was dialed
            return
        now_s = self._core.now_s()
        self._lost_s = [then_s for then_s in self._lost_s if now_s - then_s < _BURST_S] + [now_s]
        if len(self._lost_s) >= len(self._sides):
            self._unsettle()

    def _unsettle(self) -> None:
        """It went: who was alive has to be known again before a quorum is asked for."""
        now_s = self._core.now_s()
        self._since_s = now_s
        self._until_s = now_s + SETTLE_S if self.up else None  # else counted from its return
        if self.settling:
            return
        alive = [entry for entry in self._core.ledger.entries.values() if _alive(entry, now_s)]
        self._expected = {entry.replica_id for entry in alive}
        self.settling = bool(self._expected)

    def inherited(self, clients: int) -> None:
        """A worker has died with so many clients: their heartbeats may have aged meanwhile."""
        if clients:
            self.settling, self._strangers = True, clients
            self._since_s = self._core.now_s()
            self._until_s = self._since_s + SETTLE_S

    def heard(self, entry: Entry) -> None:
        """The Lighthouse has answered a heartbeat of this replica id."""
        if entry.answered_s is not None and entry.answered_s >= self._since_s:
            if entry.replica_id not in self._met:
                self._met.add(entry.replica_id)
                self._strangers = max(0, self._strangers - 1)
            self._expected.discard(entry.replica_id)
            if not self._expected and not self._strangers:
                self._settle()

    def tick(self, now_s: float) -> None:
        """Wait no longer than that for those who do not come back."""
        if self.settling and self._until_s is not None and now_s >= self._until_s:
            self._settle()

    def _settle(self) -> None:
        self.settling = False
        self._strangers = 0
        self._met.clear()
        self._expected.clear()
        self._core.advance_all()


def _alive(entry: Entry, now_s: float) -> bool:
    heard_s = entry.heartbeat_s
    passes = entry.verdict.ruling is Ruling.PASS
    return passes and heard_s is not None and now_s - heard_s < ALIVE_S
