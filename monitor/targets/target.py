"""One WorkerServer to poll, and how the store writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from monitor.names import GroupName, RankName
from worker_server.wire import Identity, WireError, parse_identity

_AGE_SLACK_S: Final = 1.0
"""May be lost between the rank's stating its age and the registry's hearing of it."""


class Source(StrEnum):
    """How a target became known."""

    LEASE = "lease"
    FILE = "file"


class Standing(StrEnum):
    """What the registry knows of one incarnation of a rank."""

    CURRENT = "current"
    SUPERSEDED = "superseded"  # a newer incarnation bears the name
    LEFT = "left"  # it unregistered: its WorkerServer saw it dead and its linger ended
    UNKNOWN = "unknown"
    REFUSED = "refused"  # its Manager's name for the group is another launcher's group


@dataclass(frozen=True, slots=True)
class Target:
    """One WorkerServer to poll."""

    identity: Identity
    url: str
    lease_s: float
    source: Source
    heard_s: float
    """Unix time of the last renewal or good answer."""
    born_s: float | None = None
    """Unix time at which the rank attached, by its own account; None when it does not say."""
    dead: bool = False
    """Its WorkerServer said so."""

    @property
    def rank(self) -> RankName:
        """Name of the rank."""
        return self.identity.rank

    @property
    def launched(self) -> GroupName:
        """Its group as its launcher calls it."""
        return self.identity.launched_as or self.identity.group

    @property
    def process(self) -> tuple[str, int, GroupName]:
        """Which process it is, whatever its group is called."""
        return self.identity.incarnation, self.identity.group_rank, self.launched


def older(one: Target, other: Target) -> bool:
    """Whether `one` attached clearly earlier."""
    if one.born_s is None or other.born_s is None:
        return False
    return one.born_s < other.born_s - _AGE_SLACK_S


def rank_of(body: Mapping[str, Any]) -> RankName | None:
    """Whose target a stored one is; None: written by another version."""
    try:
        return parse_identity(body["identity"]).rank
    except (WireError, KeyError, TypeError, ValueError):
        return None


def target_to_json(target: Target, superseded: Sequence[str]) -> dict[str, Any]:
    """As the store has it, with the incarnations that bore the name before."""
    return {
        "identity": asdict(target.identity),
        "url": target.url,
        "lease_s": target.lease_s,
        "source": str(target.source),
        "born_s": target.born_s,
        "superseded": list(superseded),
    }


def target_from_json(body: Mapping[str, Any], heard_s: float) -> tuple[Target, tuple[str, ...]]:
    """A stored target, and the incarnations that bore the name before.

    Raises:
        WireError, KeyError, TypeError, ValueError: written by another version.
    """
    target = Target(
        identity=parse_identity(body["identity"]),
        url=str(body["url"]),
        lease_s=float(body["lease_s"]),
        source=Source(body["source"]),
        heard_s=heard_s,
        born_s=None if body.get("born_s") is None else float(body["born_s"]),
    )
    return target, tuple(str(item) for item in body["superseded"])
