"""The process that does the gate's work: `python -m monitor.gate.worker CHANNEL`.

It imports everything, then waits for its keeper's word; so a spare one takes over in an instant.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from monitor.gate import bequest
from monitor.gate.bequest import Asked, Page, read_asked
from monitor.gate.denial import Denial, parse_denials
from monitor.gate.quorum_ids import QuorumIds
from monitor.gate.serve import Inheritance, Options, run

log = logging.getLogger("lightkeeper.gate")


def main() -> int:
    """Wait until needed, serve, end when the keeper ends before."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the keeper's
    bequest.roomy(channel)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    bequest.send(channel, bequest.ALIVE)
    given = take(channel)
    if given is None:
        return 0
    options, inheritance = given
    run(options, inheritance)
    return 0


def take(channel: socket.socket) -> tuple[Options, Inheritance] | None:
    """What the keeper hands over; None when it ends instead."""
    options = Options(("", 0))
    listeners: list[socket.socket] = []
    page: Page | None = None
    denied: tuple[Denial, ...] | None = None
    numbers: QuorumIds | None = None
    clients: dict[int, socket.socket] = {}
    asked: dict[int, list[Asked]] = defaultdict(list)
    while True:
        data, files = bequest.receive(channel)
        kind, body = data[:1], data[1:]
        if not data:
            return None
        if kind == bequest.OPTIONS:
            options = _options(json.loads(body))
        elif kind == bequest.LISTENERS:
            *others, page_file = files
            listeners = [socket.socket(fileno=file) for file in others]
            page = Page(page_file)
        elif kind == bequest.DENIED:
            denied = parse_denials(json.loads(body))
        elif kind == bequest.NUMBERS:
            numbers = _numbers(body)
        elif kind == bequest.CLIENT:
            clients[int.from_bytes(body, "big")] = socket.socket(fileno=files[0])
        elif kind == bequest.ASKED:
            asked[int.from_bytes(body[:8], "big")].append(read_asked(body[8:]))
        elif kind == bequest.GO:
            return options, Inheritance(listeners, channel, page, denied, numbers, clients, asked)


def _numbers(body: bytes) -> QuorumIds | None:
    """How far the quorum ids are; what cannot be read keeps no worker from serving."""
    try:
        return QuorumIds.from_json(json.loads(body))
    except ValueError as exc:
        log.warning("the worker before left no count of quorums: %s", exc)
        return None


def _options(data: Any) -> Options:
    if data["verbose"]:
        logging.getLogger("lightkeeper").setLevel(logging.INFO)
    return Options(
        lighthouse=(data["host"], data["port"]),
        state=None if data["state"] is None else Path(data["state"]),
        token=data["token"],
        hold_s=data["hold_s"],
    )


if __name__ == "__main__":
    sys.exit(main())
