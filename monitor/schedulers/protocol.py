"""What every scheduler can be asked for, and how it answers. Pure.

A driver never raises to its caller, keeps to its deadline, and refuses what it cannot identify
beyond doubt: a wrong node, job or pod is somebody's healthy group. Each call may be made again at
any time: what is already so is done, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from monitor.names import GroupName, Host, IncidentId, RankName

DETAIL_MAX_CHARS: Final = 600
"""It goes into stories, messages and tables."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request, in one line for a person."""

    done: bool
    """Whether what was asked for is so now, by this call or before it."""
    detail: str
    ours: bool = True
    """False: it is so by somebody else's hand, who may undo it; we shall not."""

    def __post_init__(self) -> None:
        line = "".join(char if char.isprintable() else " " for char in self.detail)
        object.__setattr__(self, "detail", " ".join(line.split())[:DETAIL_MAX_CHARS])


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs, as its launcher told it (`Identity.place`)."""

    rank: RankName
    host: Host
    labels: Mapping[str, str] = field(default_factory=dict)
    """`slurm_job_id`, `slurm_step_id`, `slurm_node` ..., `pod`, `namespace`, `pod_uid`, `node` ...:
    see `worker_server.place`. Empty for a rank that told none."""


Everyone = Callable[[], Sequence[Place]]
"""The places of all ranks that are known now, of every group: what must not be hit with one."""


Owner = Callable[[], str]
"""The name of the quarantine list whose marks are ours; asked for when there is one to make."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be there for a scheduler to work, and whether it is."""

    what: str
    ok: bool
    said: str


class Scheduler(Protocol):
    """One scheduler of hosts and jobs."""

    @property
    def name(self) -> str:
        """For people, logs and metrics, such as `slurm`; holds no secret."""
        ...

    def cordon(
        self, host: Host, reason: str, incident_id: IncidentId | None, timeout_s: float
    ) -> Outcome:
        """See to it that nothing new starts on a host; what runs there goes on."""
        ...

    def uncordon(self, host: Host, reason: str, timeout_s: float) -> Outcome:
        """Take back our own cordon; somebody else's stays."""
        ...

    def remove(
        self,
        group: GroupName,
        places: Sequence[Place],
        reason: str,
        incident_id: IncidentId | None,
        timeout_s: float,
    ) -> Outcome:
        """End what runs one group at these places, and nothing of any other group."""
        ...

    def cordoned(self, timeout_s: float) -> Sequence[Host] | None:
        """The hosts that bear our cordon now; None when that cannot be told."""
        ...

    def checks(self, timeout_s: float) -> Sequence[Check]:
        """What would work, tried without changing anything."""
        ...

    def close(self) -> None:
        """Let go of threads and connections."""
        ...
