"""A worker whose keeper died: it serves on, says so, and hands everything to the next gate.

Theory of operation. Training goes before tidiness: groups that are connected go on as before, and
nobody new is refused. What the keeper would do the worker now does to itself: an alarm of the
kernel ends it when it falls silent, for a port that is held by somebody who does not answer is
worse than a closed one. The next `lightkeeper gate` on the same address finds it by a name in the
abstract namespace of Unix sockets, which no file outlives. It gets all or nothing: until it has
said that it has everything this worker serves on, and from the word that it may go on this worker
reads nothing more. So at no time do two processes serve one port with two lists. It ends when
nobody has been connected for an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

from monitor.gate import bequest
from monitor.gate.keeping import Keeping, told
from monitor.gate.stream import Kind

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore

log = logging.getLogger("lightkeeper.gate")

ALONE_S: Final = 3600.0
"""Without a single client for so long, nobody is served: a fleet that restarts takes minutes."""
SILENT_S: Final = 10
"""As the keeper's: a worker that does nothing for so long is as good as gone."""
_LOOK_S: Final = 1.0
_SAY_S: Final = 300.0
_HAND_OVER_S: Final = 2.0
"""The heir only has to read what is sent, and our clients wait meanwhile."""
_TURNS: Final = 20


class Orphan:
    """What a worker does beside serving once its keeper is gone."""

    def __init__(
        self,
        core: GateCore,
        keeping: Keeping,
        listeners: list[socket.socket],
        *,
        alone_s: float = ALONE_S,
    ) -> None:
        self._core = core
        self._keeping = keeping
        self._listeners = listeners
        self._alone_s = alone_s

    async def serve_on(self) -> None:
        """Until somebody takes over, or nobody is left to serve."""
        self._keeping.kept = False
        waiting = asyncio.get_running_loop().create_task(self._wait())
        try:
            await self._watch()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            waiting.cancel()
        os.kill(os.getpid(), signal.SIGTERM)

    async def _watch(self) -> None:
        """Be alive, be heard, and end when nobody has been here for long."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel's hand: Python may be stuck
        seen_s, said_s = time.monotonic(), -_SAY_S
        while True:
            signal.setitimer(signal.ITIMER_REAL, SILENT_S)
            now_s = time.monotonic()
            if self._core.clients:
                seen_s = now_s
            if now_s - seen_s >= self._alone_s:
                log.warning("no keeper and no client for %.0f s: the gate ends", self._alone_s)
                return
            if now_s - said_s >= _SAY_S:
                said_s = now_s
                log.warning(
                    "the keeper is gone: serving on (pid %d), with nobody to go on after us, until"
                    " the next `lightkeeper gate` on the same address takes over", os.getpid(),
                )  # fmt: skip
            await asyncio.sleep(_LOOK_S)

    async def _wait(self) -> None:
        while True:
            try:
                await self._be_found()
            except OSError as exc:
                log.warning("nobody can take over from this worker: %s", exc)
            await asyncio.sleep(_LOOK_S)

    async def _be_found(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
            waiting.setblocking(False)
            address = self._listeners[0].getsockname()
            waiting.bind(bequest.successor_address(address, os.getpid()))
            waiting.listen(1)
            while True:
                heir, _ = await loop.sock_accept(waiting)
                with heir:
                    if not bequest.same_user(heir):
                        continue
                    await self._written()
                    heir.settimeout(_HAND_OVER_S)
                    bequest.roomy(heir)
                    if self._bequeath(heir):
                        os._exit(0)  # at once: from here on the sockets are another's
                log.warning("somebody came to take over and did not: serving on")

    async def _written(self) -> None:
        """Let the loop write out what was gathered; who reads slowly keeps some of it."""
        for _ in range(_TURNS):
            self._core.flush()
            if not any(each.transport.get_write_buffer_size() for each in self._core.clients):
                return
            await asyncio.sleep(0)

    def _bequeath(self, heir: socket.socket) -> bool:
        """Everything, in one go: nothing is read or written meanwhile."""
        files = [each.fileno() for each in self._listeners]
        if not bequest.send(heir, bequest.LISTENERS, *files, self._keeping.page.file):
            return False
        before = self._keeping.reports_to(heir)
        try:
            return self._tell(heir) and self._taken(heir)
        finally:
            self._keeping.reports_to(before)

    def _tell(self, heir: socket.socket) -> bool:
        self._keeping.denied(self._core)
        self._keeping.numbered(self._core)
        missed = self._keeping.missed
        for client in list(self._core.clients):
            transport = client.transport
            found = transport.get_extra_info("socket")
            if found is None or transport.is_closing() or transport.get_write_buffer_size():
                continue  # a frame of which a part went out is nothing to go on from
            key = client.key.to_bytes(8, "big")
            if not bequest.send(heir, bequest.CLIENT + key, found.fileno()):
                return False
            for stream in client.streams.values():
                if stream.kind is Kind.QUORUM and not stream.answered:
                    self._keeping.asked(client.key, told(client, stream))
            if self._keeping.missed != missed:
                return False
        return True

    def _taken(self, heir: socket.socket) -> bool:
        if not bequest.send(heir, bequest.ALL):
            return False
        with contextlib.suppress(OSError):
            return bequest.receive(heir)[0] == bequest.READY and bequest.send(heir, bequest.GO)
        return False
