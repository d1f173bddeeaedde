"""The flight record as a table for people."""

from __future__ import annotations

from worker_server import wire


def render(record: wire.FlightRecord) -> str:
    """One line a collective, oldest first."""
    return "".join(f"{entry.group} {entry.seq} {entry.op}\n" for entry in record.ring)
