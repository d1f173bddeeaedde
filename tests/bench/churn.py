"""Clients that come, beat and go, again and again, as one process:
python -m tests.bench.churn URL CLIENTS ROUNDS

Each time a third says goodbye, a third just closes, and a third resets in the middle of a frame.
Prints the number of heartbeats that were answered.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from socket import SO_LINGER, SOL_SOCKET
from urllib.parse import urlsplit

from lightkeeper.gate import http2
from tests.bench.beats import Manager

ROUND_S = 20.0
"""A busy machine takes its time; a round ends as soon as everybody was answered."""


async def one_round(host: str, port: int, clients: int, chance: random.Random) -> int:
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    ends = []
    for number in range(clients):
        made = Manager(number, 0.05, took_s)
        ends.append((await loop.create_connection(lambda made=made: made, host, port))[0])
    until_s = loop.time() + ROUND_S
    while len(took_s) < 2 * clients and loop.time() < until_s:
        await asyncio.sleep(0.05)
    for transport in ends:
        way = chance.randrange(3)
        if way == 0:
            transport.write(http2.goaway(0, 0))
        elif way == 1:
            transport.write(http2.frame(http2.DATA, 0, 1, b"x" * 50)[:20])
            transport.get_extra_info("socket").setsockopt(
                SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0)
            )
            transport.abort()
        transport.close()
    await asyncio.sleep(0.1)
    return len(took_s)


async def churn(url: str, clients: int, rounds: int) -> int:
    address, chance = urlsplit(url), random.Random(7)
    host, port = str(address.hostname), int(address.port or 0)
    return sum([await one_round(host, port, clients, chance) for _ in range(rounds)])


if __name__ == "__main__":
    print(asyncio.run(churn(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
