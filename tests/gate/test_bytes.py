"""Bytes, however they are cut and whatever they are."""

from __future__ import annotations

import contextlib
import itertools

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightkeeper.gate import http2
from lightkeeper.gate.http2 import FrameReader, Http2Error
from lightkeeper.gate.messages import (
    HeaderReader,
    QuorumRequest,
    encode_headers,
    failure,
    host_of,
    is_whole,
    read_heartbeat,
    read_quorum_request,
    values,
)
from tests.gate.wires import field, grpc, heartbeat, quorum

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=80)
    ),
    max_size=8,
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 10_000)))
def test_frames_are_the_same_however_their_bytes_arrive(
    sent: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(http2.frame(*each) for each in sent)
    reader = FrameReader()
    assert [frame for part in cut(data, cuts) for frame in reader.feed(part)] == sent
    assert reader.rest == b""


@given(st.binary(max_size=400), st.lists(st.integers(0, 400)))
def test_arbitrary_bytes_are_frames_or_the_one_error(data: bytes, cuts: list[int]) -> None:
    def read(parts: list[bytes]) -> object:
        reader = FrameReader()
        frames = []
        try:
            for part in parts:
                frames += reader.feed(part)
        except Http2Error as exc:
            return exc.code
        return frames, reader.rest

    whole_result, cut_result = read([data]), read(cut(data, cuts))
    assert (whole_result == cut_result) or isinstance(whole_result, int)
    assert isinstance(whole_result, int) == isinstance(cut_result, int)


@given(st.binary(max_size=300))
@example(b"\0\0\0\0\x02\x0a\xff")
@example(grpc(field(1, b"\x0a\xff")))
def test_arbitrary_messages_are_read_or_passed(data: bytes) -> None:
    is_whole(data)
    read_heartbeat(data)
    read_quorum_request(data)


@given(st.text(min_size=1, max_size=60), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40))
def test_a_quorum_request_is_read_with_whatever_else_is_in_it(
    replica_id: str, step: int, more: bytes
) -> None:
    message = quorum(replica_id, step=step, more=field(31, more))
    assert read_quorum_request(message) == QuorumRequest(
        replica_id, "node-1", step, values(message[5:])[1]
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", False, id="nothing"),
        pytest.param(heartbeat("a")[:-1], False, id="cut"),
        pytest.param(heartbeat("a"), True, id="whole"),
        pytest.param(heartbeat("a") + b"\0", None, id="more"),
        pytest.param(b"\1" + heartbeat("a")[1:], None, id="compressed"),
    ],
)
def test_a_message_is_whole_when_its_prefix_says_so(data: bytes, expected: bool | None) -> None:
    assert is_whole(data) is expected


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://node-7:41533", "node-7"),
        ("http://Node-7.rack.:1", "node-7.rack"),
        ("node-7:1", "node-7"),
        ("http://[fd00::1]:1", "fd00::1"),
        ("http://[:1", None),
        ("", None),
    ],
)
def test_the_host_of_a_managers_address(address: str, host: str | None) -> None:
    assert host_of(address) == host


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([":path", "te", "grpc-timeout", "x-trace", "user-agent"]),
        st.text("abc/0123", max_size=200),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(HEADERS, min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_blocks_that_refer_to_earlier_ones_are_written_again_without(
    calls: list[list[tuple[str, str]]], resize: int, huffman: bool
) -> None:
    encoder, blocks = hpack.Encoder(), HeaderReader()
    for number, pairs in enumerate([*calls, *calls]):
        if number == resize:
            encoder.header_table_size = 0 if huffman else 64
        call, _ = blocks.read(encoder.encode(pairs, huffman=huffman))
        assert hpack.Decoder().decode(call.block) == pairs
        assert call.path == dict(pairs).get(":path", "")


@given(st.binary(max_size=100))
def test_arbitrary_blocks_are_read_or_end_the_connection(block: bytes) -> None:
    with contextlib.suppress(Http2Error):
        HeaderReader().read(block)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60000000u", 60.0), ("5S", 5.0), ("100m", 0.1), ("1H", 3600.0), ("soon", None), ("", None)],
)
def test_the_clients_own_deadline_is_read(text: str, seconds: float | None) -> None:
    call, _ = HeaderReader().read(
        encode_headers([(b":path", b"/x"), (b"grpc-timeout", text.encode())])
    )
    assert call.timeout_s == pytest.approx(seconds)


def test_a_refusal_is_plain_ascii_whatever_its_reason() -> None:
    named = dict(hpack.Decoder().decode(failure(7, "käputt: 100 %\n" + "x" * 5000)))
    assert named["grpc-status"] == "7"
    assert named["grpc-message"].startswith("k%C3%A4putt: 100 %25%0Ax")
    assert len(named["grpc-message"]) < 1100


@given(st.integers(0, 70_000))
def test_a_header_block_of_any_size_fits_into_frames(size: int) -> None:
    block = bytes(size)
    frames = list(FrameReader().feed(http2.headers(5, block, end=True)))
    assert b"".join(payload for _, _, _, payload in frames) == block
    assert [bool(flags & http2.END_HEADERS) for _, flags, _, _ in frames][-1]
    assert frames[0][1] & http2.END_STREAM
