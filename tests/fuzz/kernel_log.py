"""Whatever stands in the kernel's log, reading it ends soon, in few events within bounds."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Final

from msgspec import convert, to_builtins

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.machine import ROWS_MOST
from lightkeeper.worker_server.sidecar.witnesses.kernel_log import KernelLog
from tests.fuzz.games import spoilt

_CASES: Final = Path(__file__).parents[1] / "worker_server/witnesses/cases/kernel_log.json"
LINES: Final = [line for case in json.loads(_CASES.read_text())["cases"] for line in case["lines"]]
SLOW_S: Final = 1.0


def play(rng: random.Random) -> list[str]:
    """What is wrong with how some hundred records are read."""
    log = KernelLog(Path("/nowhere"), lambda pid: pid if pid % 2 else None)
    began_s, blobs = time.process_time(), [_record(rng, n) for n in range(rng.randrange(200))]
    for blob in blobs:
        log.take(blob.decode("utf-8", "replace"))
    events = log.said(100.0)
    convert(to_builtins(events), list[wire.Testimony])
    findings = [] if len(events) <= ROWS_MOST else [f"{len(events)} events"]
    took_s = time.process_time() - began_s
    return findings + ([f"{took_s:.1f} s for {len(blobs)} records"] if took_s > SLOW_S else [])


def _record(rng: random.Random, number: int) -> bytes:
    text = rng.choice(LINES)
    if rng.random() < 0.3:
        text = text.replace(rng.choice(text), rng.choice(("\0", "٣", "{", "9" * 40, " " * 500)))
    if rng.random() < 0.1:
        text *= rng.randrange(1, 40)
    record = f"{rng.choice((3, 4, 6, 12))},{number},{rng.randrange(10**8)},-;{text}".encode()
    return spoilt(rng, record) if rng.random() < 0.4 else record
