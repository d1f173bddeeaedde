"""Clients that send as much as they can, and beside them one that beats: its deadline is kept.

Time is work: a unit (a frame, or a field of a header block that is decoded) is 6 us, as measured.
Each attacker has 64 KiB more for each turn of the loop in which it is read, and comes again when it
is sent away.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import h2.events as h2_events
import hpack
import pytest

from lightkeeper.gate import http2, messages
from lightkeeper.gate.http2 import Http2Connection
from lightkeeper.gate.messages import (
    HEARTBEAT_PATH,
    QUORUM_PATH,
    HeaderReader,
    encode_headers,
    read_heartbeat,
    read_quorum_request,
)
from lightkeeper.gate.proxy import RESENT_MAX, SPARE_MAX
from tests.gate.wires import Bench, bench, field, grpc, heartbeat

UNIT_S = 6e-6
DEADLINE_S = 5.0
"""TorchFT's, of a heartbeat."""
TURN_MOST = 3000
"""Units in a turn of the loop: 18 ms."""
READ = 64 * 1024

BEAT = encode_headers([(b":method", b"POST"), (b":path", HEARTBEAT_PATH.encode())])
ASK = encode_headers([(b":method", b"POST"), (b":path", QUORUM_PATH.encode())])
OPEN = http2.headers(1, ASK, end=False)
OVER = http2.headers(1, ASK, end=False) + http2.reset(1, http2.CANCEL)
INSERTED = b"".join(b"\x40\x01a\x01" + bytes([letter]) for letter in range(33, 120))


def forever(part: bytes) -> Iterator[bytes]:
    return itertools.repeat(part)


def one_after_another(part: Callable[[int], bytes]) -> Iterator[bytes]:
    return (part(number) for number in itertools.count(3, 2))


def continued() -> Iterator[bytes]:
    for number in itertools.count(3, 2):
        yield http2.frame(http2.HEADERS, 0, number, b"\x82")
        for _ in range(60):
            yield http2.frame(http2.CONTINUATION, 0, number, b"\x82")
        yield http2.frame(http2.CONTINUATION, http2.END_HEADERS, number, b"\x82")


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "headers-of-a-call-that-is-over": lambda: itertools.chain(
        [OVER], forever(http2.headers(1, b"\x82" * 1500, end=False))
    ),
    "small-headers-of-a-call-that-is-over": lambda: itertools.chain(
        [OVER],
        (http2.headers(1, b"\x82" * size, end=False) for size in itertools.cycle(range(90, 190))),
    ),
    "headers-that-fill-the-table": lambda: itertools.chain(
        [OVER], forever(http2.headers(1, INSERTED, end=False))
    ),
    "changes-of-the-table": lambda: itertools.chain(
        [OVER], forever(http2.headers(1, b"\x20" * 4000 + b"\x82", end=False))
    ),
    "more-calls-than-there-may-be": lambda: one_after_another(
        lambda number: http2.headers(number, ASK, end=False)
    ),
    "calls-that-are-cancelled": lambda: one_after_another(
        lambda number: http2.headers(number, ASK, end=False) + http2.reset(number, http2.CANCEL)
    ),
    "headers-in-crumbs": continued,
    "pings": lambda: forever(http2.frame(http2.PING, 0, 0, bytes(8))),
    "answers-to-pings": lambda: forever(http2.frame(http2.PING, http2.ACK, 0, bytes(8))),
    "settings": lambda: forever(http2.settings({})),
    "long-settings": lambda: forever(http2.frame(http2.SETTINGS, 0, 0, b"\0\x63\0\0\0\1" * 2700)),
    "windows": lambda: forever(http2.window_update(1, 1)),
    "priorities": lambda: forever(http2.frame(2, 0, 1, bytes(5))),
    "unknown-frames": lambda: forever(http2.frame(99, 0, 1, b"")),
    "empty-data": lambda: itertools.chain([OPEN], forever(http2.frame(http2.DATA, 0, 1, b""))),
    "data-byte-by-byte": lambda: itertools.chain(
        [OPEN, http2.frame(http2.DATA, 0, 1, b"\0\0\1\0\0")],
        forever(http2.frame(http2.DATA, 0, 1, b"a")),
    ),
    "data-of-calls-that-are-over": lambda: itertools.chain(
        [OVER], forever(http2.frame(http2.DATA, 0, 1, b"abc"))
    ),
    "heartbeats": lambda: one_after_another(
        lambda number: (
            http2.headers(number, BEAT, end=False)
            + http2.frame(http2.DATA, http2.END_STREAM, number, heartbeat("rg_9:x"))
        )
    ),
    "resets-of-nothing": lambda: forever(http2.reset(1, http2.CANCEL)),
}


class Attacker:
    """Sends whenever it is read, and comes again when it is sent away."""

    def __init__(self, gate: Bench, attack: Callable[[], Iterator[bytes]]) -> None:
        self.gate, self.attack = gate, attack
        self.came = 0
        self.connect()

    def connect(self) -> None:
        self.came += 1
        self.parts = self.attack()
        self.client = self.gate.client()

    def send(self) -> None:
        if self.client.wire.closed:
            assert http2.goaway(0, 0)[9:13] in self.client.wire.take()
            self.client.leave()
            self.connect()
        self.client.wire.sent.clear()
        if self.client.wire.reading:
            data = bytearray()
            while len(data) < READ:
                data += next(self.parts)
            self.client.side.data_received(bytes(data))


class Meter:
    """How much work was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        frame, read, decode = Http2Connection._frame, HeaderReader.read, hpack.Decoder.decode
        fields = 0

        def count_frame(side: Http2Connection, kind: int, *words: Any) -> None:
            self.done += 1 if kind != http2.SETTINGS else 1 + len(words[2]) // 60
            frame(side, kind, *words)

        def count_block(blocks: HeaderReader, block: bytes) -> Any:
            nonlocal fields
            fields = 0
            try:
                return read(blocks, block)
            finally:
                self.done += fields

        def count_fields(decoder: hpack.Decoder, data: bytes, raw: bool = False) -> Any:
            nonlocal fields
            fields = 256  # where it is given up
            decoded = decode(decoder, data, raw=raw)
            fields = max(len(decoded), len(data) // 4 if data[0] == 0x20 else 0)
            return decoded

        monkeypatch.setattr(Http2Connection, "_frame", count_frame)
        monkeypatch.setattr(HeaderReader, "read", count_block)
        monkeypatch.setattr(hpack.Decoder, "decode", count_fields)


class Fire:
    """A gate, one client that beats, and those who attack."""

    def __init__(self, gate: Bench, meter: Meter, attacks: list[str]) -> None:
        self.gate, self.meter = gate, meter
        self.honest = gate.client()
        self.attackers = [Attacker(gate, ATTACKS[name]) for name in attacks]
        self.most = 0
        """Work in one turn of the loop."""

    def turn(self, *acts: Callable[[], object]) -> None:
        """One turn of the loop, in which this happens and everybody attacks."""
        loop, before = self.gate.loop, self.meter.done
        for act in (*acts, *(attacker.send for attacker in self.attackers)):
            loop.call_soon(act)
        loop.call_soon(loop.stop)
        loop.run_forever()
        work = self.meter.done - before
        self.gate.now_s += work * UNIT_S
        self.most = max(self.most, work)

    def beat(self) -> float:
        """How long one heartbeat takes; no longer than its deadline."""
        h2, began_s = self.honest.h2, self.gate.now_s
        number = h2.get_next_available_stream_id()
        names = [(":method", "POST"), (":path", HEARTBEAT_PATH), (":scheme", "http")]
        h2.send_headers(number, [*names, (":authority", "gate")])
        h2.send_data(number, heartbeat("rg_0:x"), end_stream=True)
        sent = h2.data_to_send()
        self.turn(lambda: self.honest.side.data_received(sent))
        while self.gate.now_s - began_s < DEADLINE_S:
            for event in h2.receive_data(self.honest.wire.take()):
                if isinstance(event, h2_events.StreamEnded):
                    return self.gate.now_s - began_s
            self.turn(self.lighthouse)
        return DEADLINE_S

    def lighthouse(self) -> None:
        """It answers the honest one."""
        for carried in self.gate.carried:
            if carried.side.client is self.honest.side and not carried.wire.closed:
                carried.answer_all()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_heartbeat_beside_three_that_flood(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as gate:
        fire = Fire(gate, Meter(monkeypatch), [attack] * 3)
        took_s = [fire.beat() for _ in range(5)]
        assert max(took_s) < 0.1
        assert fire.most < TURN_MOST


def test_a_heartbeat_beside_two_hundred_that_flood_with_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bench() as gate:
        fire = Fire(gate, Meter(monkeypatch), list(itertools.islice(itertools.cycle(ATTACKS), 200)))
        took_s = [fire.beat() for _ in range(5)]
        assert max(took_s) < 0.1
        assert fire.most < TURN_MOST


@pytest.mark.parametrize("attack", sorted(set(ATTACKS) - {"heartbeats"}))
def test_who_sends_what_belongs_to_no_call_is_sent_away(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench() as gate:
        meter = Meter(monkeypatch)
        fire = Fire(gate, meter, [attack])
        [attacker] = fire.attackers
        while attacker.came == 1:
            fire.turn()
            assert meter.done < 3 * SPARE_MAX
        assert gate.core.counts.bad_clients == 1


def test_a_client_of_days_that_pings_and_cancels_now_and_then_stays() -> None:
    """A heartbeat in a hundred is cancelled, each brings a ping and a window."""
    with bench() as gate:
        client = gate.client()
        for number in range(1000):
            beat = client.beat("rg_0:x")
            client.h2.ping(bytes(8))
            client.h2.increment_flow_control_window(5)
            client.push()
            if number % 100:
                gate.carried[0].answer_all()
            else:
                client.h2.reset_stream(beat)
            client.pull()
            client.events.clear()
            gate.carried[0].events.clear()
        assert not client.wire.closed


def test_an_honest_client_never_waits_for_its_turn() -> None:
    with bench() as gate:
        client = gate.client()
        client.beat("rg_0:x")
        gate.carried[0].answer_all()
        waited = []
        gate.core.turns.wait = waited.append  # type: ignore[method-assign]
        for _ in range(100):
            gate.now_s += 0.1
            client.beat("rg_0:x")
            gate.carried[0].answer_all()
        assert waited == []


def test_who_does_not_take_answers_is_not_read_and_goes_on_later() -> None:
    pings = http2.frame(http2.PING, 0, 0, bytes(8)) * 500
    with bench() as gate:
        client = gate.client()
        gate.do(client.side.pause_writing)
        gate.do(client.side.data_received, pings)
        gate.turn()
        answered = len(client.wire.sent) // 17
        assert answered < 100
        gate.do(client.side.resume_writing)
        gate.turn()
        assert client.wire.reading
        assert bytes(client.wire.sent).count(bytes(8)) == 500


def test_the_one_that_was_answered_least_recently_makes_room() -> None:
    with bench() as gate:
        gate.core.clients_max = 3
        honest = gate.client()
        silent = [gate.client() for _ in range(2)]
        for _ in range(5):
            beat = honest.beat("rg_0:x")
            gate.carried[0].answer_all()
            assert honest.status(beat) == ("0", "")
            silent.append(gate.client())
        assert [client.wire.closed for client in silent] == [True] * 5 + [False] * 2
        assert len(gate.core.transports) == 3


def test_what_is_kept_of_all_clients_is_bounded_and_who_is_short_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightkeeper.gate.proxy.KEPT_OF_ALL", 300_000)
    with bench() as gate:
        gate.away()
        large = [gate.client() for _ in range(5)]
        for client in large:
            client.call(QUORUM_PATH, b"\0" + (900_000).to_bytes(4, "big"), end=False)
            for _ in range(6):
                piece = http2.frame(http2.DATA, 0, 1, bytes(16_000))
                if not client.wire.closed:
                    gate.do(client.side.data_received, piece)
                    gate.turn()
        assert gate.core.kept_bytes < 300_000 + http2.FRAME_MAX
        honest = gate.client()
        ask = honest.ask("rg_0:x")
        assert honest.side.calls[ask].kept
        for client in (*large, honest):
            client.leave()
        assert gate.core.kept_bytes == 0


@pytest.mark.parametrize(
    "message",
    [
        field(1, b"rg_0:x") + field(9, 1) * 300_000,
        field(9, b"") * 300_000 + field(1, b"rg_0:x"),
        field(1, (field(9, 1) * 300_000)),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fx",
        b"\x0a" + b"\xff" * 1000,
        b"\xff" * 1000,
        b"\x0b" * 1000,
    ],
    ids=["many", "many-first", "many-within", "longer-than-all", "endless", "no-number", "groups"],
)
def test_a_message_that_is_none_of_torchfts_costs_little(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    plain = messages.varint

    def counted(data: bytes, at: int, end: int) -> tuple[int, int]:
        nonlocal steps
        steps += 1
        return plain(data, at, end)

    monkeypatch.setattr(messages, "varint", counted)
    for read in (read_heartbeat, read_quorum_request):
        read(grpc(message))
    assert steps < 600


def test_a_dial_that_fails_for_want_of_files_is_no_lighthouse_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    with bench() as gate:
        gate.loop.run_until_complete(gate.core.lighthouse._knock())
        assert gate.core.lighthouse.up is True


def test_a_call_at_which_the_lighthouse_ends_its_connection_is_asked_a_few_times() -> None:
    with bench() as gate:
        honest, bad = gate.client(), gate.client()
        for each in (honest, gate.client(), gate.client()):
            each.beat("rg_0:x")
            gate.carried[-1].answer_all()
        ask = bad.ask("rg_1:x")
        dialed = len(gate.carried)
        for _ in range(50):
            if not gate.carried[-1].wire.closed:
                gate.carried[-1].die()
            assert not gate.core.lighthouse.settling
        assert len(gate.carried) == dialed + RESENT_MAX
        assert bad.status(ask) == ("14", "lightkeeper: the Lighthouse went away")
