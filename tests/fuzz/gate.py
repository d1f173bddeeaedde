"""Whatever a client sends to the gate, it costs that client at most, and no more than its turn.

A game is a gate in memory with a client that beats and
up to four that send valid frames, broken ones, and plain noise, in pieces of any size; the
Lighthouse answers, resets, goes away and comes back.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

import h2.exceptions

from lightkeeper.gate import http2
from lightkeeper.gate.denylist import parse_denials
from lightkeeper.gate.messages import (
    HEARTBEAT_PATH,
    QUORUM_PATH,
    encode_headers,
    read_heartbeat,
    read_quorum_request,
)
from lightkeeper.gate.proxy import KEPT_MAX
from tests.fuzz.games import spoilt
from tests.gate.wires import Bench, bench, field, grpc, heartbeat, quorum, varint

ODD_NUMBERS: Final = (0, 1, 2, 3, 5, 127, 128, 255, 16_384, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
ODD_VALUES: Final = (
    None, True, 0, -1, 10**400, 1e308, float("inf"), float("nan"), "", "a", "\ud800", "x" * 3000,
    [], {}, [[]], ["a"], {"a": 1}, "host", "group",
)  # fmt: skip
_MOVE_S: Final = 2.0
"""Of CPU: what one move may take."""


class Game:
    """One gate, and what is wrong with it."""

    def __init__(self, gate: Bench, dice: random.Random) -> None:
        self.gate, self.dice = gate, dice
        self.honest = gate.client()
        self.others = [gate.client() for _ in range(dice.randint(1, 4))]
        self.findings: list[str] = []
        gate.loop.set_exception_handler(
            lambda _, context: self.findings.append(f"in the loop: {context.get('exception')!r}")
        )

    def play(self) -> list[str]:
        """Some moves, and after each an honest heartbeat."""
        for _ in range(self.dice.randint(1, 12)):
            began_s = time.process_time()
            move = self.dice.choice([self.send, self.send, self.send, self.lighthouse, self.time])
            move()
            self.judge(move.__name__, time.process_time() - began_s)
        self.gate.returns()
        self.gate.core.lighthouse.settling = False
        beat = self.honest.beat("rg_0:x")
        for _ in range(3):
            for carried in self.gate.carried:
                if not carried.wire.closed and carried.side.client is self.honest.side:
                    carried.answer_all()
        if self.honest.status(beat) != ("0", ""):
            self.findings.append(f"a heartbeat was answered with {self.honest.status(beat)}")
        for client in self.others:
            client.leave()
        if self.gate.core.kept_bytes or len(self.gate.core.turns):
            self.findings.append("something is left of clients that are gone")
        return self.findings

    def send(self) -> None:
        """Somebody sends something."""
        client = self.dice.choice(self.others)
        if client.wire.closed:
            client.leave()
            self.others.remove(client)
            self.others.append(self.gate.client())
            return
        data = b"".join(self.part() for _ in range(self.dice.choice([1, 3, 10, 100])))
        if self.dice.random() < 0.2:
            data = data[: self.dice.randint(0, len(data))]
        size = self.dice.choice([1, 7, 100, 10_000, 100_000]) if len(data) < 3000 else 65_536
        for at in range(0, len(data), size):
            if not client.wire.closed:
                self.gate.do(client.side.data_received, data[at : at + size])
        if self.dice.random() < 0.1 and not client.wire.closed:
            self.gate.do(client.side.pause_writing)
            self.gate.turn()
            self.gate.do(client.side.resume_writing)
        self.gate.turn()
        client.wire.take()

    def part(self) -> bytes:
        """A frame, or what is none."""
        dice = self.dice
        number = dice.choice([1, 1, 3, 5, dice.randrange(1, 400, 2), *ODD_NUMBERS])
        flags = dice.choice([0, 1, 4, 4, 5, 5, 8, 12, 32, 37, 255])
        return dice.choice(self._PARTS)(self, number & http2.WINDOW_MAX, flags)

    def _block(self) -> bytes:
        dice = self.dice
        path = dice.choice([HEARTBEAT_PATH, QUORUM_PATH, "/other", ""]).encode()
        pairs = [(b":method", b"POST"), (b":path", path)]
        return dice.choice(
            [
                encode_headers(pairs),
                encode_headers(
                    [*pairs, (b"grpc-timeout", dice.choice([b"5S", b"0n", b"99999999H", b"x"]))]
                ),
                b"\x82" * dice.choice([1, 100, 2000]),
                b"\x20" * dice.choice([1, 2, 3, 3000]) + b"\x82",
                b"\x3f" + varint(dice.choice(ODD_NUMBERS)) + b"\x82",
                b"\x40\x01a" + b"\x7f" + varint(dice.choice(ODD_NUMBERS)) + b"b" * 200,
                b"\x40\x01a\x01b" * dice.choice([1, 50]) + b"\xbe" * dice.choice([0, 100]),
                b"\xff" * dice.choice([2, 5000]),
                dice.randbytes(dice.choice([0, 10, 200])),
            ]
        )

    def _message(self) -> bytes:
        dice = self.dice
        body = dice.choice(
            [
                heartbeat("rg_1:x"),
                quorum("rg_1:x", step=dice.choice(ODD_NUMBERS)),
                grpc(
                    field(1, b"rg_1:x") + field(9, dice.choice(ODD_NUMBERS)) * dice.choice([1, 999])
                ),
                grpc(field(1, field(1, b"\xff" * 9) + field(4, 2**63))),
                grpc(b"\x0a" + varint(dice.choice(ODD_NUMBERS)) + b"a"),
                grpc(b"\x0b" * 100),
                b"\x01" + grpc(b"")[1:],
                b"\0" + dice.choice(ODD_NUMBERS).to_bytes(4, "big"),
                dice.randbytes(dice.choice([0, 4, 40, 9000])),
            ]
        )
        return spoilt(dice, body) if dice.random() < 0.3 else body

    def _begin(self, number: int, flags: int) -> bytes:
        data = http2.frame(http2.DATA, flags & 9, number, self._message()[: http2.FRAME_MAX])
        return http2.headers(number, self._block(), end=flags & 3 == 1) + data

    def _headers(self, number: int, flags: int) -> bytes:
        return http2.frame(http2.HEADERS, flags, number, self._block())

    def _data(self, number: int, flags: int) -> bytes:
        return http2.frame(http2.DATA, flags, number, self._message()[: http2.FRAME_MAX])

    def _word(self, number: int, flags: int) -> bytes:
        kind = self.dice.choice([http2.RST_STREAM, http2.WINDOW_UPDATE, http2.GOAWAY])
        word = self.dice.choice(ODD_NUMBERS).to_bytes(4, "big")
        return http2.frame(kind, flags, self.dice.choice([0, number]), word)

    def _control(self, number: int, flags: int) -> bytes:
        body = self.dice.choice([b"", bytes(8), b"\0\4\xff\xff\xff\xff", bytes(6 * 99), bytes(5)])
        return http2.frame(self.dice.randint(2, 12), flags, self.dice.choice([0, number]), body)

    def _many(self, number: int, flags: int) -> bytes:
        return self._control(number, flags) * self.dice.choice([10, 3000])

    def _noise(self, number: int, flags: int) -> bytes:
        return spoilt(self.dice, self._begin(number, flags))

    _PARTS: Final[tuple[Callable[[Game, int, int], bytes], ...]] = (
        _begin, _begin, _begin, _headers, _data, _data, _word, _control, _many, _noise,
    )  # fmt: skip

    def lighthouse(self) -> None:
        """It answers, resets, goes, comes, or talks nonsense."""
        dice, act = self.dice, self.dice.randint(0, 4)
        if act == 0:
            self.gate.away()
        elif act == 1:
            self.gate.returns()
        for carried in list(self.gate.carried):
            if carried.wire.closed:
                continue
            if act == 2 and carried.side.client is not self.honest.side:
                self.gate.do(carried.side.data_received, spoilt(dice, http2.reset(1, 8) * 3))
            elif act > 2 and carried.side.client is self.honest.side:
                carried.answer_all()
            elif act > 2:
                try:
                    carried.answer_all()
                except h2.exceptions.ProtocolError:  # what was no call: that connection ends
                    carried.die()

    def time(self) -> None:
        """It passes."""
        self.gate.sleep(self.dice.choice([0.1, 0.5, 3.0]))

    def judge(self, move: str, took_s: float) -> None:
        """What must hold at any time."""
        if took_s > _MOVE_S:
            self.findings.append(f"{move} took {took_s:.1f} s of CPU")
        if self.honest.wire.closed:
            self.findings.append("the honest client was sent away")
        for client in self.others:
            if not client.wire.closed and client.side._kept_bytes > KEPT_MAX:
                self.findings.append(f"{client.side._kept_bytes} bytes are kept of one client")


def read(dice: random.Random) -> None:
    """What is read without a connection: messages, and the list of denials."""
    body = spoilt(dice, dice.choice([heartbeat("rg_0:x"), quorum("rg_0:x")]))
    read_heartbeat(body)
    read_quorum_request(body)
    entry = {"scope": dice.choice(["host", "group", "replica"]), "name": "a", "reason": "b"}
    keys = ["scope", "name", "reason", "until_s", "incident_id", "admitted", "refused"]
    for _ in range(dice.randint(0, 3)):
        entry[dice.choice(keys)] = dice.choice(ODD_VALUES)  # type: ignore[assignment]
    listed = dice.choice([[entry], [entry, entry], entry, *ODD_VALUES])
    with contextlib.suppress(ValueError):
        parse_denials(dice.choice([{"denied": listed}, {"denied": listed}, listed]))


def play(dice: random.Random) -> list[str]:
    """Some readings, and one gate."""
    for _ in range(20):
        read(dice)
    with bench() as gate:
        return Game(gate, dice).play()
