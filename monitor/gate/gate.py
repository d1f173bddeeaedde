"""The gate's memory and rulings, shared by its connections: one per process, on one loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from monitor.gate.denial import Denial
from monitor.gate.doorman import Doorman, Ruling
from monitor.gate.group_side import GroupSide
from monitor.gate.ledger import Entry, Ledger
from monitor.gate.lighthouse import Lighthouse
from monitor.gate.messages import read_asking, read_heartbeat
from monitor.gate.outgoing import Outgoing
from monitor.gate.quorum_ids import QuorumIds
from monitor.gate.stream import Kind, Stage, Stream
from monitor.gate.view import GateView

log = logging.getLogger("lightkeeper.gate")

REFUSAL_S: Final = 1.0
"""A refused heartbeat is answered so late: a manager dials again at once after each failure."""
HOLD_S: Final = 10.0
"""How long a quorum request of an unknown incarnation waits for a newer list."""
PATIENCE_S: Final = 2.0
"""How long a heartbeat waits for a Lighthouse that is away."""
TICK_S: Final = 0.1
_MESSAGES_MAX: Final = 20_000


class GateCore:
    """What the connections of one gate share."""

    patience_s = PATIENCE_S

    def __init__(
        self,
        lighthouse: tuple[str, int],
        clock: Callable[[], float],
        *,
        hold_s: float = HOLD_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: Unix seconds, for expiry; `now_s`: a steady clock, for the rest."""
        self.now_s = now_s  # not the loop's: uvloop's stands still within a turn, in steps of 1 ms
        self.clock = clock
        self.hold_s = hold_s
        self.doorman = Doorman()
        self.ledger = Ledger()
        self.quorum_ids = QuorumIds()
        self.clients: set[GroupSide] = set()
        self.lighthouse = Lighthouse(self, *lighthouse)
        self._waiting: set[GroupSide] = set()
        self._dirty: list[Outgoing] = []
        self._beats: dict[bytes, Entry] = {}

    # -- writing --------------------------------------------------------------------------------

    def dirty(self, connection: Outgoing) -> None:
        """A connection has something to write."""
        self._dirty.append(connection)

    def flush(self) -> None:
        """Write it."""
        while self._dirty:
            self._dirty.pop().flush()

    # -- who may pass ---------------------------------------------------------------------------

    def rule(self, stream: Stream) -> tuple[Stage, float]:
        """What becomes of a call whose message is whole, and when: what cannot be read passes."""
        now_s = self.now_s()
        entry = stream.entry
        if entry is None:
            entry = stream.entry = self._identify(stream, now_s)
            if entry is None:
                self.ledger.counts.unread += 1
                return Stage.WAITING, now_s
        ruling = self._ruling(entry)
        if ruling is Ruling.PASS:
            if stream.stage is Stage.SENT:
                return Stage.SENT, now_s
            return Stage.WAITING, now_s
        if stream.kind is Kind.QUORUM:
            if ruling is Ruling.HOLD:
                return Stage.HELD, max(stream.began_s, now_s) + self.hold_s
            return Stage.REFUSED, now_s
        return Stage.REFUSED, stream.began_s + REFUSAL_S

    def _ruling(self, entry: Entry) -> Ruling:
        if entry.version != self.doorman.version:
            entry.verdict = self.doorman.judge(entry.replica_id, entry.host)
            entry.version = self.doorman.version
        return entry.verdict.ruling

    def _identify(self, stream: Stream, now_s: float) -> Entry | None:
        message = bytes(stream.data)
        if stream.kind is Kind.HEARTBEAT:
            return self._heartbeat(message, now_s)
        self.ledger.counts.quorum_requests += 1
        asking = read_asking(message)
        entry = None if asking is None else self.ledger.entry(asking.replica_id, now_s)
        if asking is None or entry is None:
            return None
        if entry.host != asking.host:
            entry.host, entry.version = asking.host, -1
        entry.asking = asking
        entry.quorum_requests += 1
        entry.asking_since_s = now_s
        return entry

    def _heartbeat(self, message: bytes, now_s: float) -> Entry | None:
        self.ledger.counts.heartbeats += 1
        entry = self._beats.get(message)
        if entry is None:
            replica_id = read_heartbeat(message)
            entry = None if replica_id is None else self.ledger.entry(replica_id, now_s)
            if entry is None:
                return None
            if len(self._beats) >= _MESSAGES_MAX or len(message) > 1100:
                self._beats.clear()
            self._beats[message] = entry
        entry.heartbeats += 1
        entry.heartbeat_s = entry.heard_s = now_s
        return entry

    def wave(self, stream: Stream) -> None:
        """Nobody said in time whether this incarnation may pass."""
        if stream.entry is not None:
            log.warning("%s was held and nobody said: it passes", stream.entry.replica_id)
            self.ledger.counts.waved += 1
            self.doorman.wave(stream.entry.replica_id)

    def deny(self, denials: Sequence[Denial]) -> None:
        """Put a list in force, also for calls under way."""
        before = self.doorman.version
        self.doorman.replace(denials, self.clock())
        if self.doorman.version != before:
            self._judge_again()

    def _judge_again(self) -> None:
        for client in list(self.clients):
            client.judge_again()
        self.flush()

    # -- what happens to calls --------------------------------------------------------------------

    def waits(self, client: GroupSide) -> None:
        """A call of this client is not with the Lighthouse."""
        self._waiting.add(client)

    def refused(self, stream: Stream) -> None:
        """A call is refused now."""
        if stream.entry is not None and stream.entry.verdict.scope is not None:
            stream.entry.refused += 1
            self.ledger.counts.refused[stream.entry.verdict.scope] += 1

    def answered(self, stream: Stream) -> None:
        """The Lighthouse begins to answer a call."""
        entry = stream.entry
        if entry is None or stream.kind is not Kind.HEARTBEAT:
            return
        self.ledger.counts.took(self.now_s() - stream.since_s)
        entry.answered_s = stream.since_s
        if self.lighthouse.settling:
            self.lighthouse.heard(entry)

    def finished(self, stream: Stream) -> None:
        """A call is over."""
        if stream.kind is Kind.QUORUM and stream.entry is not None:
            stream.entry.asking_since_s = None

    def bad_client(self, transport: asyncio.Transport, why: str) -> None:
        """A client broke the protocol and is sent away."""
        self.ledger.counts.bad_clients += 1
        log.info("client %s: %s", transport.get_extra_info("peername"), why)

    def absence(self) -> str:
        """Why a call did not get to the Lighthouse."""
        if self.lighthouse.up is False:
            return f"the Lighthouse at {self.lighthouse.host}:{self.lighthouse.port} is away"
        return "the Lighthouse was not ready"

    # -- time -------------------------------------------------------------------------------------

    def advance_all(self) -> None:
        """The Lighthouse is ready: hand it what waits."""
        for client in list(self._waiting):
            client.advance()
        self.flush()

    def tick(self) -> None:
        """Do what is due."""
        now_s = self.now_s()
        if self.doorman.expire(self.clock()):
            self._judge_again()
        self.lighthouse.tick(now_s)
        for client in list(self._waiting):
            if not client.tick(now_s):
                self._waiting.discard(client)
        self.flush()

    def forget(self) -> None:
        """Drop what was not heard of for long."""
        self.ledger.forget(self.now_s())
        known = self.ledger.entries
        self._beats = {m: e for m, e in self._beats.items() if known.get(e.replica_id) is e}

    def view(self) -> GateView:
        """What it sees now."""
        now_s = self.now_s()
        return GateView(
            lighthouse=f"http://{self.lighthouse.host}:{self.lighthouse.port}",
            lighthouse_up=self.lighthouse.up is True,
            denied=self.doorman.denials,
            replicas=tuple(e.seen(now_s) for _, e in sorted(self.ledger.entries.items())),
        )
