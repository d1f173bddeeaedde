"""One client's way to the Lighthouse: dialed when it is needed, and ended with the client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore
    from monitor.gate.group_side import GroupSide
    from monitor.gate.lighthouse_side import LighthouseSide

_HELD: Final = "the client"


class Passage:
    """At most one connection at a time, and at most one attempt."""

    def __init__(self, core: GateCore, client: GroupSide) -> None:
        self._core = core
        self._client = client
        self._side: LighthouseSide | None = None
        self._dialing: asyncio.Task[None] | None = None

    def open(self) -> LighthouseSide | None:
        """What takes a call now; None: it is dialed, and then the client is told to `advance`."""
        side = self._side
        if side is not None and side.takes:
            return side
        if self._dialing is None and not self._client.closed:
            self._dialing = asyncio.get_running_loop().create_task(self._reach())
        return None

    async def _reach(self) -> None:
        try:
            made = await self._core.lighthouse.connect(self._client)
        finally:
            self._dialing = None
        if self._client.closed:
            made.close()
            return
        if not made.closed:
            self._side = made
        self._client.advance()
        self._core.flush()

    def left(self, side: LighthouseSide, *, lost: bool) -> None:
        """It takes no more; `lost`: the Lighthouse has ended it."""
        if self._side is side:
            self._side = None
        if side.closed:
            self._core.lighthouse.left(side, lost=lost)

    def credit(self, size: int) -> None:
        """The client has that much more of an answer whose call is over."""
        if self._side is not None:
            self._side.credit(0, size)

    def hold(self, held: bool) -> None:
        """The client reads too slowly, or does again."""
        if self._side is not None and held:
            self._side.hold_reading(_HELD)
        elif self._side is not None:
            self._side.let_read(_HELD)

    def close(self) -> None:
        """The client is gone."""
        if self._dialing is not None:
            self._dialing.cancel()
        if self._side is not None:
            self._side.close()
