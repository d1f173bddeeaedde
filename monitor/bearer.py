"""The secrets by which monitor and WorkerServers know each other: one of the job, and those of
replica groups that trust the others less.

Ranks of a group with a token of its own know that one alone, and are asked with that one alone: who
is asked with the monitor's own would have it from then on.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Mapping, Set
from hashlib import sha256
from typing import Final

from monitor.model.names import GroupName

NO_GROUP: Final = GroupName("")
"""Of the gate, and of who has not said yet who it is: asked with the monitor's own token."""


class Tokens:
    """`own`: may do everything; None: none is configured."""

    def __init__(
        self, own: str | None = None, groups: Mapping[GroupName, str] | None = None
    ) -> None:
        self.own = own
        self._of = dict(groups or {})
        self._groups: defaultdict[bytes, set[GroupName]] = defaultdict(set)
        for group, token in self._of.items():  # a hash is looked up without telling how far it fits
            self._groups[sha256(token.encode()).digest()].add(group)

    def of(self, group: GroupName) -> str | None:
        """The one that ranks of this group know."""
        return self._of.get(group, self.own)

    def is_own(self, told: bytes) -> bool:
        """Whether it is the monitor's own."""
        return self.own is not None and hmac.compare_digest(told, self.own.encode())

    def groups(self, told: bytes) -> Set[GroupName]:
        """Those of which ranks may register with it."""
        return self._groups.get(sha256(told).digest(), frozenset())
