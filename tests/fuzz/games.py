"""What all explorations share: games that are made from their number alone, and odd things."""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

Play = Callable[[random.Random], list[str]]
"""One game; returns what it finds as sentences. What it raises is a finding, too."""

MOST: Final = 10
"""Findings: then it is enough."""


def one_game(play: Play, number: int) -> list[str]:
    """What this game finds, which is the same each time."""
    try:
        findings = play(random.Random(number))
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is a finding
        at = traceback.extract_tb(exc.__traceback__)[-1]
        notes = "; ".join(getattr(exc, "__notes__", ()))
        where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        findings = [f"{type(exc).__name__}: {str(exc)[:300]} ({where}) {notes}"]
    name = play.__module__.rpartition(".")[2]
    return [f"{name}, game {number}: {text[:600]}" for text in findings]


def explore(play: Play, seed: int, seconds: float, games: int = sys.maxsize) -> list[str]:
    """Findings, none twice; until the time is over, or so many games were played."""
    until_s, numbers, findings = time.monotonic() + seconds, random.Random(seed), dict[str, None]()
    for _ in range(games):
        if time.monotonic() >= until_s or len(findings) >= MOST:
            break
        findings |= dict.fromkeys(one_game(play, numbers.randrange(1 << 31)))
    return list(findings)


ODD: Final = (
    None, True, -1, 0, 1 << 31, 1 << 63, -(1 << 63) - 1, 10**400, 1.5, float("nan"), float("inf"),
    "", "0", "-1", "x" * 40, "nccl:send 0->99999999999", "nccl:", ":", " ", "[0, 0, 1]", "[[]]",
    "{}", "[1e9]", "completed", "torchft_quorum_3_rank_0", "torchft", "\ud800", b"", b"\xff",
    [], {}, [[]], [{}], [None], [[None]], [[1.5]], [["a"]], ["a"], (), ("a", "b"), (1, 2),
    {"": {}}, {"0": None}, {"0": {"ranks": "[0,"}}, {"x": {"last_enqueued_collective": "y"}},
)  # fmt: skip
"""What has been seen to stand, or might stand, where something else was meant."""
TEXTS: Final = (
    "\x00", "\u202e\u2066", "\ud800", "\U0010ffff" * 3, "a" * 70_000, "\n\r\t", "=cmd()",
    "<script>", "../../etc", "-rf", "%s%n", "{}", "\u0130", "é" * 200,
)  # fmt: skip
NUMBERS: Final = (
    -1, 0, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**400, 1e308, 1.7e308,
    -1.7e308, 5e-324, 1e18, 1e9, 86_400.0 * 366, -0.0, 0.1,
)  # fmt: skip
RAW: Final = (b"", b"null", b"[]", b"{}", b"7", b'"x"', b"NaN", b"[" * 100_000, b"\xff\xfe",
              b'{"schema": 1e999}', b'{"schema":1,"schema":2}', b"{" * 5000, b"\x00" * 1000,
              b'{"a":' * 2000 + b"1" + b"}" * 2000, b"1" * 5000)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every object or list in it, with each of its keys."""
    pairs, pile = [], [value]
    while pile:
        box = pile.pop()
        for key in list(box) if isinstance(box, dict) else range(len(box)):
            pairs.append((box, key))
            if isinstance(box[key], dict | list):
                pile.append(box[key])
    return pairs


def spoilt(dice: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, cut, doubled or put between."""
    raw = bytearray(data)
    for _ in range(dice.choice((1, 3, 20))):
        at = dice.randrange(len(raw) + 1)
        match dice.randrange(4):
            case 0 if at < len(raw):
                raw[at] = dice.choice((raw[at] ^ 1 << dice.randrange(8), dice.randrange(256)))
            case 1:
                raw[at:at] = dice.randbytes(dice.randrange(1, 9))
            case 2:
                del raw[at : at + dice.randrange(1, 30)]
            case _:
                raw[at:at] = raw[at : at + dice.randrange(1, 200)]
    return bytes(raw)
