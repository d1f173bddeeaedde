"""Clients that are slow, broken or hostile: each costs itself, and little memory."""

from __future__ import annotations

import random

import h2.events
import pytest

from monitor.gate import frames
from monitor.gate.group_side import STREAMS_MAX
from monitor.gate.headers import QUORUM_PATH, encode
from monitor.gate.stream import KEPT_MAX
from tests.monitor.gate.wires import Bench, Wire, bench, grpc, heartbeat

REQUEST = encode([(b":method", b"POST"), (b":path", QUORUM_PATH.encode())])


def raw(gate: Bench, *parts: bytes) -> Wire:
    """A client that sends these bytes after its preface."""
    client = gate.client()
    for part in parts:
        if not client.wire.closed:
            gate.do(client.wire.protocol.data_received, part)
    gate.turn()
    return client.wire


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"\xff" * 64], id="garbage"),
        pytest.param([b"\x00\x40\x01\x00\x00\x00\x00\x00\x01"], id="frame-too-large"),
        pytest.param([frames.frame(frames.DATA, 0, 0, b"x")], id="data-of-no-stream"),
        pytest.param([frames.headers(2, REQUEST, end=True)], id="even-stream"),
        pytest.param([frames.headers(1, b"\xff\xff\xff\xff\xff", end=True)], id="bad-headers"),
        pytest.param([frames.frame(frames.CONTINUATION, 4, 1, b"")], id="continues-nothing"),
        pytest.param(
            [
                frames.frame(frames.HEADERS, 0, 1, REQUEST),
                frames.frame(frames.PING, 0, 0, bytes(8)),
            ],
            id="block-not-continued",
        ),
        pytest.param(
            [frames.frame(frames.HEADERS, 0, 1, b"\0" * 16_000)]
            + [frames.frame(frames.CONTINUATION, 0, 1, b"\0" * 16_000)] * 5,
            id="giant-headers",
        ),
        pytest.param(
            [frames.frame(frames.HEADERS, 0, 1, REQUEST)]
            + [frames.frame(frames.CONTINUATION, 0, 1, b"")] * 9,
            id="empty-continuations",
        ),
        pytest.param([frames.frame(frames.PING, 0, 0, b"123")], id="short-ping"),
        pytest.param([frames.frame(frames.SETTINGS, 0, 0, b"123")], id="short-settings"),
        pytest.param(
            [frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31})], id="window-over-2-GiB"
        ),
        pytest.param([frames.window_update(0, 2**31 - 1)] * 2, id="window-grows-over-2-GiB"),
        pytest.param([frames.frame(frames.PUSH_PROMISE, 4, 1, b"")], id="push"),
        pytest.param([frames.frame(frames.DATA, frames.PADDED, 1, b"\xff")], id="padding"),
        pytest.param(
            [frames.headers(1, encode([(b":path", b"/other")]), end=False)]
            + [frames.frame(frames.DATA, 0, 1, bytes(16_384))] * 5,
            id="more-than-the-window",
        ),
    ],
)
def test_who_breaks_the_protocol_is_sent_away_and_nobody_else(parts: list[bytes]) -> None:
    with bench() as gate:
        gate.away()
        good = gate.client()
        bad = raw(gate, *parts)
        assert bad.closed
        assert frames.goaway(0, 0)[9:13] in bytes(bad.sent)
        gate.returns()
        beat = good.beat("rg_0:x")
        for carried in gate.carried:
            if not carried.wire.closed:
                carried.answer_all()
        assert good.status(beat) == ("0", "")
        assert gate.core.ledger.counts.bad_clients == 1


def test_more_calls_than_a_client_may_have_are_refused_one_by_one() -> None:
    with bench() as gate:
        wire = raw(
            gate,
            *[frames.headers(1 + 2 * n, REQUEST, end=False) for n in range(STREAMS_MAX + 3)],
        )
        last = frames.reset(1 + 2 * (STREAMS_MAX + 2), frames.REFUSED_STREAM)
        assert not wire.closed
        assert bytes(wire.sent).endswith(last)
        assert len(wire.protocol.streams) == STREAMS_MAX


def test_who_only_opens_and_cancels_is_sent_away() -> None:
    with bench() as gate:
        wire = raw(
            gate,
            *[
                frames.headers(1 + 2 * n, REQUEST, end=False) + frames.reset(1 + 2 * n, 8)
                for n in range(1100)
            ],
        )
        assert wire.closed


def test_what_is_kept_of_one_client_is_bounded() -> None:
    large = b"\0" + (900_000).to_bytes(4, "big")
    with bench() as gate:
        gate.away()
        parts = []
        for n in range(0, 8, 2):
            parts.append(frames.headers(1 + n, REQUEST, end=False))
            parts.append(frames.frame(frames.DATA, 0, 1 + n, large))
            parts += [frames.frame(frames.DATA, 0, 1 + n, bytes(16_000))] * 40
        wire = raw(gate, *parts)
        held = sum(len(stream.data) for stream in wire.protocol.streams.values())
        assert held <= KEPT_MAX + frames.WINDOW_DEFAULT


def test_a_client_that_reads_slowly_holds_one_window_and_stops_only_itself() -> None:
    with bench() as gate:
        slow, quick = gate.client(), gate.client()
        ask, beat = slow.ask("rg_0:x"), quick.beat("rg_1:x")
        carried, other = gate.carried
        gate.do(slow.side.pause_writing)
        assert not slow.wire.reading
        assert not carried.wire.reading
        assert other.wire.reading
        other.answer_all()
        assert quick.status(beat) == ("0", "")
        gate.do(slow.side.resume_writing)
        assert carried.wire.reading
        carried.answer_all()
        assert slow.status(ask) == ("0", "")


def test_a_large_quorum_goes_at_the_clients_pace() -> None:
    body = grpc(random.Random(1).randbytes(400_000))
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        [carried] = gate.carried
        [(number, _, _)] = carried.calls()
        carried.h2.send_headers(number, [(":status", "200")])
        sent = 0
        while sent < len(body):
            size = min(16_384, carried.h2.local_flow_control_window(number), len(body) - sent)
            if size:
                carried.h2.send_data(number, body[sent : sent + size])
                sent += size
                carried.pull()
            gate.turn()
            client.pull()
            for event in client.events:
                if isinstance(event, h2.events.DataReceived) and not hasattr(event, "done"):
                    event.done = True
                    client.h2.acknowledge_received_data(event.flow_controlled_length, ask)
            client.push()
        carried.h2.send_headers(number, [("grpc-status", "0")], end_stream=True)
        carried.pull()
        for _ in range(20):
            client.pull()
            for event in client.events:
                if isinstance(event, h2.events.DataReceived) and not hasattr(event, "done"):
                    event.done = True
                    client.h2.acknowledge_received_data(event.flow_controlled_length, ask)
            client.push()
        assert client.body(ask) == body
        assert client.status(ask) == ("0", "")
        assert carried.side._inside == 0


def test_a_ping_is_answered_and_unknown_frames_are_ignored() -> None:
    with bench() as gate:
        wire = raw(
            gate, frames.frame(99, 3, 7, b"what"), frames.frame(frames.PING, 0, 0, b"12345678")
        )
        assert frames.frame(frames.PING, frames.ACK, 0, b"12345678") in bytes(wire.sent)
        assert not wire.closed


def test_a_lighthouse_that_says_goaway_answers_what_it_has_and_gets_no_more() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        [old] = gate.carried
        [(number, _, _)] = old.calls()
        gate.do(old.side.data_received, frames.goaway(number, 0))
        beat = client.beat("rg_0:x")
        [_, new] = gate.carried
        assert [body for _, _, body in new.calls()] == [heartbeat("rg_0:x")]
        old.answer(number)
        new.answer_all()
        assert client.status(ask) == client.status(beat) == ("0", "")


@pytest.mark.parametrize("size", [1, 7, 30])
def test_a_conversation_is_the_same_however_its_bytes_arrive(size: int) -> None:
    with bench() as gate:
        client = gate.client()
        received = client.wire.protocol.data_received

        def drip(data: bytes) -> None:
            for at in range(0, len(data), size):
                received(data[at : at + size])

        client.wire.protocol.data_received = drip
        beat, ask = client.beat("rg_0:x"), client.ask("rg_0:x")
        gate.carried[0].answer_all()
        assert client.status(beat) == client.status(ask) == ("0", "")
