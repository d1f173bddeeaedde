"""To which launch, and to which run of the job, a rank belongs. Pure.

Theory of operation. A *launch* is one start of one replica group: its ranks form one world, so they
all live at once. A *run* is one start of a job: a chain of launches each of which began while
another lived. A group that restarts beside others that live stays in their run; who starts when
nobody lives begins a new one. What ranks claim decides where they can know it (`Claim`): the
launcher's process is the same, or the ids of their launches, or where they met. Else their lives
decide: who died before another was born was never in a world with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from lightkeeper.monitor.model.names import GroupName, RankName, ReplicaId
from lightkeeper.monitor.model.plain import readable
from lightkeeper.worker_server.wire import UNNAMED, Claim, Identity


@readable
@dataclass(frozen=True, slots=True)
class Target:
    identity: Identity
    url: str
    lease_s: float
    heard_s: float
    """Unix time of the last renewal."""
    born_s: float | None = None
    """Unix time at which its process began, by its own account; None when it does not say."""
    died_s: float | None = None
    """Unix time of its death, as its WorkerServer reports; None while it lives."""
    claim: Claim = field(default_factory=Claim)
    """Without its secret."""
    proved: bool = False
    """True if it knows the secret of its incarnation."""
    bringer: str = ""
    """The address, or IPv6 network, from which it first registered; empty: not known."""
    trained_as: ReplicaId | None = None
    """Its replica id once it has committed, until its work is done."""

    @property
    def dead(self) -> bool:
        return self.died_s is not None

    @property
    def rank(self) -> RankName:
        return self.identity.rank

    @property
    def launched(self) -> GroupName:
        """Its group as its launcher calls it."""
        return self.identity.launched_as or self.identity.group

    @property
    def address(self) -> str | None:
        return urlsplit(self.url).hostname

    @property
    def process(self) -> tuple[str, int, GroupName]:
        """Identifies the process, whatever its group is called."""
        return self.identity.incarnation, self.identity.group_rank, self.launched


_SLACK_S: Final = 1.0
"""Time that may pass between a rank's stating its age and the registry's receiving it."""


def older(target: Target, than: Target) -> bool:
    if target.born_s is None or than.born_s is None:
        return False
    return target.born_s < than.born_s - _SLACK_S


def over_before(target: Target, other: Target) -> bool:
    """True if one died before the other's process began."""
    if target.died_s is None or other.born_s is None:
        return False
    return target.died_s < other.born_s - _SLACK_S


def same_launch(rank: Target, other: Target) -> bool | None:
    """True if two ranks of one group were started together; None: nothing speaks against it."""
    a, b = rank.claim, other.claim
    if a.launcher and a.launcher == b.launcher and rank.address == other.address:
        return True
    if a.launch != b.launch:
        return False
    if a.meeting and b.meeting and a.meeting != b.meeting:
        return False
    if a.launch and b.launch:
        return True
    if a.meeting != b.meeting:
        return False
    return False if over_before(rank, other) or over_before(other, rank) else None


def same_world(rank: Target, other: Target) -> bool:
    """True if both can be ranks of one group at once."""
    sizes = rank.identity.world_size, other.identity.world_size
    return sizes[0] == sizes[1] and same_launch(rank, other) is not False


def same_job(rank: Target, other: Target) -> bool:
    """True if two ranks can be of one job: its name says so, unless they ask two Lighthouses or,
    where nobody named it, one asks a Lighthouse and one none; or one Lighthouse says so (with a
    launcher for each group, each may name the job after itself).
    """
    a, b = rank.claim.lighthouse, other.claim.lighthouse
    if a and a == b:
        return True
    ports = {urlsplit(url if "//" in url else f"//{url}").netloc.rpartition(":")[2]
             for url in (a, b)}  # fmt: skip
    named = rank.identity.job != UNNAMED or not (rank.proved and other.proved)
    apart = len(ports) > 1 if a and b else a != b and not named
    return rank.identity.job == other.identity.job and not apart
