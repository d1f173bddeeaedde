"""Clients that are slow, broken or hostile: each costs itself, and little memory."""

from __future__ import annotations

import random

import h2.events
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightkeeper.gate import http2
from lightkeeper.gate.messages import QUORUM_PATH, encode_headers
from lightkeeper.gate.proxy import CALLS_MAX, KEPT_MAX
from tests.gate.wires import Bench, Wire, bench, grpc, heartbeat, quorum

REQUEST = encode_headers([(b":method", b"POST"), (b":path", QUORUM_PATH.encode())])


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
        pytest.param([http2.frame(http2.DATA, 0, 0, b"x")], id="data-of-no-stream"),
        pytest.param([http2.headers(2, REQUEST, end=True)], id="even-stream"),
        pytest.param([http2.headers(1, b"\xff\xff\xff\xff\xff", end=True)], id="bad-headers"),
        pytest.param([http2.frame(http2.CONTINUATION, 4, 1, b"")], id="continues-nothing"),
        pytest.param(
            [http2.frame(http2.HEADERS, 0, 1, REQUEST), http2.frame(http2.PING, 0, 0, bytes(8))],
            id="block-not-continued",
        ),
        pytest.param(
            [http2.frame(http2.HEADERS, 0, 1, b"\0" * 16_000)]
            + [http2.frame(http2.CONTINUATION, 0, 1, b"\0" * 16_000)] * 5,
            id="giant-headers",
        ),
        pytest.param(
            [http2.frame(http2.HEADERS, 0, 1, REQUEST)]
            + [http2.frame(http2.CONTINUATION, 0, 1, b"")] * 9,
            id="empty-continuations",
        ),
        pytest.param([http2.frame(http2.PING, 0, 0, b"123")], id="short-ping"),
        pytest.param([http2.frame(http2.SETTINGS, 0, 0, b"123")], id="short-settings"),
        pytest.param([http2.settings({http2.INITIAL_WINDOW_SIZE: 2**31})], id="window-over-2-GiB"),
        pytest.param([http2.window_update(0, 2**31 - 1)] * 2, id="window-grows-over-2-GiB"),
        pytest.param([http2.frame(http2.PUSH_PROMISE, 4, 1, b"")], id="push"),
        pytest.param([http2.frame(http2.DATA, http2.PADDED, 1, b"\xff")], id="padding"),
        pytest.param(
            [http2.headers(1, encode_headers([(b":path", b"/other")]), end=False)]
            + [http2.frame(http2.DATA, 0, 1, bytes(16_384))] * 5,
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
        assert http2.goaway(0, 0)[9:13] in bytes(bad.sent)
        gate.returns()
        beat = good.beat("rg_0:x")
        for carried in gate.carried:
            if not carried.wire.closed:
                carried.answer_all()
        assert good.status(beat) == ("0", "")
        assert gate.core.counts.bad_clients == 1


def test_more_calls_than_a_client_may_have_are_refused_one_by_one() -> None:
    with bench() as gate:
        wire = raw(
            gate, *[http2.headers(1 + 2 * n, REQUEST, end=False) for n in range(CALLS_MAX + 3)]
        )
        last = http2.reset(1 + 2 * (CALLS_MAX + 2), http2.REFUSED_STREAM)
        assert not wire.closed
        assert bytes(wire.sent).endswith(last)
        assert len(wire.protocol.calls) == CALLS_MAX


def test_what_is_kept_of_one_client_is_bounded() -> None:
    large = b"\0" + (900_000).to_bytes(4, "big")
    with bench() as gate:
        gate.away()
        parts = []
        for n in range(0, 8, 2):
            parts.append(http2.headers(1 + n, REQUEST, end=False))
            parts.append(http2.frame(http2.DATA, 0, 1 + n, large))
            parts += [http2.frame(http2.DATA, 0, 1 + n, bytes(16_000))] * 40
        wire = raw(gate, *parts)
        held = sum(len(stream.data) for stream in wire.protocol.calls.values())
        assert held <= KEPT_MAX + http2.WINDOW_DEFAULT


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


def test_a_client_is_read_again_once_the_lighthouse_that_took_nothing_is_gone() -> None:
    with bench() as gate:
        client = gate.client()
        beat = client.beat("rg_0:x")
        gate.do(gate.carried[0].side.pause_writing)
        assert not client.wire.reading
        gate.carried[0].die()
        assert client.wire.reading
        gate.carried[1].answer_all()
        assert client.status(beat) == ("0", "")


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
        assert carried.side._held_bytes == 0


def test_a_ping_is_answered_and_unknown_frames_are_ignored() -> None:
    with bench() as gate:
        wire = raw(gate, http2.frame(99, 3, 7, b"what"), http2.frame(http2.PING, 0, 0, b"12345678"))
        assert http2.frame(http2.PING, http2.ACK, 0, b"12345678") in bytes(wire.sent)
        assert not wire.closed


def test_a_lighthouse_that_says_goaway_answers_what_it_has_and_gets_no_more() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        [old] = gate.carried
        [(number, _, _)] = old.calls()
        gate.do(old.side.data_received, http2.goaway(number, 0))
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


def test_what_is_kept_of_calls_that_are_over_is_nothing() -> None:
    """A client for days: calls that end, are cancelled, refused, half sent, answered in pieces."""
    with bench() as gate:
        client, answered = gate.client(), set()
        for turn in range(60):
            half = client.call(QUORUM_PATH, quorum(f"rg_0:{turn}")[:7], end=False)
            client.h2.reset_stream(half)
            open_end = client.call(QUORUM_PATH, quorum("rg_0:x", step=4), end=False)
            beat, ask = client.beat("rg_0:x"), client.ask("rg_0:x")
            [carried] = gate.carried
            for number, path, _ in carried.calls():
                stream = carried.h2.streams.get(number)
                if path == QUORUM_PATH and stream is not None and number not in answered:
                    answered.add(number)
                    if stream.open:
                        carried.answer(number, grpc(bytes(3000)))
            carried.events.clear()
            client.pull()
            for event in client.events:
                if isinstance(event, h2.events.DataReceived):
                    client.h2.acknowledge_received_data(event.flow_controlled_length, ask)
            client.events.clear()
            client.push()
            client.h2.reset_stream(beat)
            client.push()
            assert open_end < ask
        side, [carried] = client.side, gate.carried
        for end in (side, carried.side):
            kept = (end._send_windows, end._queued, end._stream_credit)
            assert [len(each) for each in kept] == [0, 0, 0], type(end)
        assert side.calls == {}
        assert carried.side.carried == {}
        assert side._kept_bytes == 0


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 10),
        st.sampled_from([0, 1, 4, 5, 8, 12, 32, 255]),
        st.sampled_from([0, 1, 1, 3, 3, 5, 2, 2**31 - 1]),
        st.one_of(
            st.binary(max_size=40),
            st.just(REQUEST),
            st.just(heartbeat("rg_0:x")),
            st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "big")),
        ),
    ),
    max_size=30,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FRAMES, FRAMES)
def test_any_frames_from_either_end_end_that_connection_at_most(
    from_client: list[tuple[int, int, int, bytes]],
    from_lighthouse: list[tuple[int, int, int, bytes]],
) -> None:
    with bench() as gate:
        client, other = gate.client(), gate.client()
        client.ask("rg_0:x")
        for each in from_client:
            if not client.wire.closed:
                gate.do(client.wire.protocol.data_received, http2.frame(*each))
        if gate.carried:
            side = gate.carried[0].side
            for each in from_lighthouse:
                if not side.closed:
                    gate.do(side.data_received, http2.frame(*each))
        gate.sleep(0.3)
        beat = other.beat("rg_1:x")
        for carried in gate.carried[1:]:
            if not carried.wire.closed:
                carried.answer_all()
        assert other.status(beat) == ("0", "")
        held = sum(len(stream.data) for stream in client.side.calls.values())
        assert held <= KEPT_MAX
        gate.do(client.wire.protocol.connection_lost, None)
        for carried in gate.carried:
            carried.die()
        assert client.side.calls == {}
        assert client.side not in gate.core.clients
