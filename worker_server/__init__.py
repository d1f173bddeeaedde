"""The WorkerServer: the black box beside every rank.

Belongs here: what runs in the rank (attach, reporter, the shared page) and what runs beside
it (the sidecar). Does not belong here: any judgement about who is healthy; that is the
monitor's. `wire` is the contract with the monitor and the only module it may import.

Nothing in this package raises into training, blocks it, or changes its exit code. One exception:
with `LIGHTKEEPER_ADMISSION=refuse`, a rank that the monitor refuses exits before training starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from lightkeeper.worker_server.harmless import guarded

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import Reporter

if __name__ != "lightkeeper.worker_server":
    raise ImportError(f"`{__name__}` is `lightkeeper.worker_server` now", name=__name__)

__all__ = ["attach"]


def attach(
    *,
    job: str | None = None,
    group: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    host: str | None = None,
    admission: Literal["off", "warn", "refuse"] | None = None,
) -> Reporter:
    """Report this process as a rank and start its WorkerServer; never raises, never waits.

    Missing arguments come from the launcher's variables (see `identity`): `rank` and
    `world_size` are those in the replica group, `host` is the scheduler's name of the node.
    A second call returns the same reporter, whatever its arguments. LIGHTKEEPER=0 turns it off.

    With `admission` (or LIGHTKEEPER_ADMISSION) the monitor is asked first whether this host and
    group may train, for 2 s at most. If not, `warn` warns and `refuse` ends the process with status
    75 (SystemExit) before training starts. A monitor that is away admits everybody.
    """
    variables = {
        "LIGHTKEEPER_JOB": job, "REPLICA_GROUP": group, "RANK": rank, "WORLD_SIZE": world_size,
        "LIGHTKEEPER_HOST": host, "LIGHTKEEPER_ADMISSION": admission,
    }  # fmt: skip
    overrides = {name: str(value) for name, value in variables.items() if value is not None}

    def now() -> Reporter:
        from lightkeeper.worker_server import autoload  # noqa: PLC0415  wire stays light
        from lightkeeper.worker_server.rank.attach import attach as attach_now  # noqa: PLC0415

        autoload.fulfil()
        return attach_now(overrides)

    reporter = guarded(now, None)
    if reporter is None:
        from lightkeeper.worker_server.rank.null_reporter import NullReporter  # noqa: PLC0415

        reporter = cast("Reporter", NullReporter())
    return reporter
