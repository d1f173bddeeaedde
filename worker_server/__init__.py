"""The WorkerServer: the black box beside every rank.

Belongs here: what runs in the rank (attach, reporter, the shared page) and what runs beside
it (the sidecar). Does not belong here: any judgement about who is healthy; that is the
monitor's. `wire` is the contract with the monitor and the only module it may import.

Nothing in this package raises into training, blocks it, or changes its exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_server.reporter import StepReporter

__all__ = ["attach"]


def attach() -> StepReporter:
    """Report this process as a rank and start its WorkerServer; never raises, never waits."""
    from worker_server.attachment import attach as attach_now  # noqa: PLC0415  wire stays light

    return attach_now()
