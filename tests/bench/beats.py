"""N managers' heartbeats as one process: python -m tests.bench.beats URL CLIENTS INTERVAL_S SECONDS

Each client has its own HTTP/2 connection and beats like TorchFT's manager: the next heartbeat
goes out INTERVAL_S after the answer to the last. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast
from urllib.parse import urlsplit

from lightkeeper.gate import http2
from lightkeeper.gate.http2 import FrameReader
from lightkeeper.gate.messages import HEARTBEAT_PATH, encode_headers

WARM_S = 1.0


class Manager(asyncio.Protocol):
    """One client."""

    def __init__(self, number: int, interval_s: float, took_s: list[float]) -> None:
        self._number = number
        self._interval_s = interval_s
        self._took_s = took_s
        name = f"rg_{number}:0123456789abcdef".encode()
        message = b"\x0a" + bytes((len(name),)) + name
        self._message = b"\0" + len(message).to_bytes(4, "big") + message
        pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"gate"),
                 (b":path", HEARTBEAT_PATH.encode()), (b"te", b"trailers"),
                 (b"content-type", b"application/grpc"), (b"user-agent", b"tonic")]  # fmt: skip
        self._block = encode_headers(pairs)
        self._reader = FrameReader()
        self._stream = 1
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(http2.PREFACE + http2.settings({}))
        spread_s = (self._number % 100) / 100 * self._interval_s
        asyncio.get_running_loop().call_later(spread_s, self._beat)

    def _beat(self) -> None:
        self._sent_s = time.perf_counter()
        end = http2.frame(http2.DATA, http2.END_STREAM, self._stream, self._message)
        self._transport.write(http2.headers(self._stream, self._block, end=False) + end)

    def data_received(self, data: bytes) -> None:
        for kind, flags, stream, payload in self._reader.feed(data):
            if kind == http2.SETTINGS and not flags & http2.ACK:
                self._transport.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
            elif kind == http2.PING and not flags & http2.ACK:
                self._transport.write(http2.frame(http2.PING, http2.ACK, 0, payload))
            elif kind == http2.HEADERS and flags & http2.END_STREAM and stream == self._stream:
                self._took_s.append(time.perf_counter() - self._sent_s)
                self._stream += 2
                asyncio.get_running_loop().call_later(self._interval_s, self._beat)


async def beat(url: str, clients: int, interval_s: float, seconds: float) -> dict[str, float]:
    took_s: list[float] = []
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    for number in range(clients):
        made = Manager(number, interval_s, took_s)
        await loop.create_connection(lambda made=made: made, address.hostname, address.port)
    await asyncio.sleep(WARM_S)
    took_s.clear()
    began_s = time.perf_counter()
    await asyncio.sleep(seconds)
    lasted_s = time.perf_counter() - began_s
    ordered = sorted(took_s)
    count = len(ordered)
    return {
        "beats": count,
        "per_s": count / lasted_s,
        "p50_ms": ordered[count // 2] * 1e3,
        "p99_ms": ordered[int(count * 0.99)] * 1e3,
    }


if __name__ == "__main__":
    url, clients, interval_s, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(beat(url, int(clients), float(interval_s), float(seconds)))))
