"""The operator's rules as values: what may be done about which kind of fault, and when not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from monitor.detectors.verdict import Kind, Severity
from monitor.policy.windows import Window


class Action(StrEnum):
    """What may be done about an incident, from the least to the most."""

    OBSERVE = "observe"  # record what would have been done
    PAGE = "page"  # tell a person; never evict
    EVICT = "evict"  # put the group out; its hosts stay open
    EVICT_AND_QUARANTINE = "evict_and_quarantine"  # and deny the hosts that the evidence blames


_USUAL: Final[Mapping[Kind, Action]] = {
    Kind.DEAD: Action.EVICT_AND_QUARANTINE,
    Kind.NOT_ENTERED: Action.EVICT_AND_QUARANTINE,
    Kind.MISMATCH: Action.EVICT,  # a fault of the program, which any other host would repeat
    Kind.DEADLOCK: Action.EVICT,  # the same
    Kind.STRAGGLER: Action.EVICT_AND_QUARANTINE,
    Kind.REPLICA_LAG: Action.EVICT,
    Kind.LIGHTHOUSE_AWAY: Action.PAGE,  # it accuses no group: there is nobody to evict
    Kind.STATE_CORRUPT: Action.EVICT_AND_QUARANTINE,
    Kind.UNSEEN: Action.PAGE,  # while it trains, it harms nobody
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants, beside the thresholds and guards of `KeeperConfig`."""

    actions: Mapping[tuple[Kind, Severity], Action] = field(
        default_factory=lambda: {(k, s): action for k, action in _USUAL.items() for s in Severity}
    )
    """For every kind and severity."""
    windows: tuple[Window, ...] = ()

    def action(self, kind: Kind, severity: Severity) -> Action:
        """What may be done about such an incident."""
        return self.actions[kind, severity]

    def window(self, now_s: float) -> tuple[Window, float] | None:
        """The maintenance window that is open now, and when it ends; the one that ends last."""
        found = [(one, until_s) for one in self.windows if (until_s := one.until_s(now_s))]
        return max(found, key=lambda one: one[1], default=None)


DEFAULT: Final = Policy()
"""What holds when no policy file is given."""
