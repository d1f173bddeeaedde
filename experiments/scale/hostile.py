"""What a rank or a client may send to keep a monitor from its work."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Final

ODD_STATES: Final = 155
_ODD: Final[tuple[Any, ...]] = (
    10**400, -(10**400), 1.7e308, -1.7e308, 5e-324, float("nan"), float("inf"), -1, 2**63, -(2**64),
    True, None, "", "x" * 20_000, "\ud800", "\x00\x1b[2J", "<script>alert(1)</script>", "=cmd()",
    [], {}, [[]] * 1000, list(range(2000)), {"a": {"b": {}}}, {str(n): n for n in range(2000)},
)  # fmt: skip
_PLACES: Final = (
    ("step", "seconds"), ("step", "seconds", "forward"), ("step", "tokens"), ("step", "phase"),
    ("step", "phase_age_s"), ("step", "attempt"), ("step", "commits"), ("step", "loss"),
    ("step", "replica_id"), ("step", "last_commit_age_s"), ("step",), ("process",),
    ("process", "rss_bytes"), ("process", "interpreter_age_s"), ("process", "state"),
    ("process", "cores"), ("heads",), ("heads", 0), ("heads", 0, 0), ("heads", 0, 2),
    ("heads", 0, 5), ("witness",), ("ending",), ("identity", "host"), ("identity", "place"),
    ("identity", "pid"), ("unhooked",),
)  # fmt: skip


def odd_state(number: int, plain: dict[str, Any]) -> bytes:
    """A state with one thing in it that no state has: each number another one."""
    said: Any = copy.deepcopy(plain)
    place, value = _PLACES[number % len(_PLACES)], _ODD[(7 * number) % len(_ODD)]
    inner = said
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return json.dumps(said).encode()


async def crowd(port: int, silent: int, dripping: int) -> list[asyncio.Task[None]]:
    """Clients that never finish a request: those who say nothing, and one byte a second."""
    return [
        asyncio.create_task(_client(port, drips=drips))
        for drips in (*[False] * silent, *[True] * dripping)
    ]


async def _client(port: int, *, drips: bool) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in _bytes():
                if drips:
                    writer.write(byte)
                    await writer.drain()
                await asyncio.sleep(1.0)
        except OSError:
            await asyncio.sleep(1.0)


def _bytes() -> Iterator[bytes]:
    """A request of a minute that is never over."""
    text = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    return islice(cycle(text[n : n + 1] for n in range(len(text))), 60)
