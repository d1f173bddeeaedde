"""What every scheduler can be asked for, and how it answers. Pure.

A driver never raises to its caller, keeps to its deadline, and refuses what it cannot identify
beyond doubt: a wrong node, job or pod is somebody's healthy group. Each call may be repeated at any
time: what is already so counts as done, and the outcome says so.
"""

from __future__ import annotations

import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from lightkeeper.monitor.act.testimonies import Said
from lightkeeper.monitor.background import backoff_s
from lightkeeper.monitor.model.names import (
    GroupName,
    Host,
    IncidentId,
    RankName,
    group_of,
    one_line,
)
from lightkeeper.worker_server.wire import Testimony

# -- protocol ----------------------------------------------------------------------------------

# Which other groups would be hit: a job or a pod may carry ranks of several.


class NotDone(Exception):  # noqa: N818 - an answer, not an accident
    """A request that was not carried out, for whatever reason: its target cannot be identified
    beyond doubt, the deadline is over; the message is one line for a person.
    """

    def __init__(self, said: str, retry_s: float | None = None) -> None:
        """`retry_s`: when it may be carried out if it is sent again; None: it will not."""
        super().__init__(said)
        self.retry_s = retry_s


_SLURM = "slurm_job_id"
_POD = "pod_uid"


def refuse_shared_job(others: Sequence[Place], job: str, step: str | None) -> None:
    """A rank that names no place may be in this job; a rank known to be in a pod is not in Slurm.

    Raises:
        NotDone: the job (or this step of it) cannot be ended for a group alone.
    """
    for other in others:
        job_id = other.labels.get(_SLURM)
        if job_id is None and _POD not in other.labels:
            raise NotDone(f"{other.rank} does not tell its place and may run in job {job} too")
        if job_id == job and step is None:
            raise NotDone(f"job {job} carries {other.rank} too")
        if job_id == job and other.labels.get("slurm_step_id") == step:
            raise NotDone(f"step {job}.{step} carries {other.rank} too")


def refuse_shared_pod(others: Sequence[Place], uid: str, hosts: Collection[str]) -> None:
    """The pod is on one of these hosts, so a rank on any other host is in another pod, even if it
    names none.

    Raises:
        NotDone: the pod cannot be deleted for a group alone.
    """
    for other in others:
        pod_uid = other.labels.get(_POD)
        if pod_uid == uid:
            raise NotDone(f"pod {uid} carries {other.rank} too")
        if pod_uid is None and _SLURM not in other.labels and other.host in hosts:
            raise NotDone(f"{other.rank} does not tell its place and may run in pod {uid} too")


# The mark on a node: it informs a person, and we recognise our own by it.

_NOT_OWNER: Final = re.compile(r"[^A-Za-z0-9._-]+")
_BAD: Final = re.compile(r"[^ -~]+")
OWNER_MAX_CHARS: Final = 40


def owner_name(text: str) -> str:
    """A name for our quarantine list; other monitors' lists may mark the same nodes."""
    return _NOT_OWNER.sub("-", text).strip("-")[:OWNER_MAX_CHARS] or "default"


def mark(owner: str) -> str:
    """Prefix of all our reasons."""
    return f"lightkeeper[{owner}]: "


def marked(owner: str, why: Why, max_chars: int) -> str:
    """A reason that begins with our mark: one line of plain ASCII without quotes.

    A shell, a hostlist or a config file may read it later: nothing in it has a meaning to them.
    """
    incident = "" if why.incident_id is None else f"incident {why.incident_id}: "
    return plain_line(mark(owner) + incident + why.reason, max_chars)


def plain_line(text: str, max_chars: int) -> str:
    """One line of plain ASCII without quotes, backslashes, backticks or dollars."""
    line = " ".join(_BAD.sub(" ", text).split())
    line = line.translate({ord(char): None for char in "'\"`"} | {ord("\\"): "/", ord("$"): "S"})
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."


DETAIL_MAX_CHARS: Final = 600
"""Shown in stories, messages and tables."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request, in one line for a person."""

    done: bool
    """True if what was asked for is the case now, through this call or an earlier action."""
    detail: str
    ours: bool = True
    """False: somebody else did it, and only they may undo it."""

    def __post_init__(self) -> None:
        line = "".join(char if char.isprintable() else " " for char in self.detail)
        object.__setattr__(self, "detail", one_line(line, DETAIL_MAX_CHARS))


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs, as its launcher gave it (`Identity.place`)."""

    rank: RankName
    host: Host
    labels: Mapping[str, str] = field(default_factory=dict)
    """`slurm_job_id`, `slurm_step_id`, `slurm_node` ..., `pod`, `namespace`, `pod_uid`, `node` ...:
    see `worker_server.rank.identity`. Empty for a rank that named none."""


Ended = tuple[Place, Testimony]


Everyone = Callable[[], Sequence[Place]]
"""Returns the places of all known ranks of all groups: what an eviction of one must not hit."""


Owner = Callable[[], str]
"""Name of our quarantine list; called when the first mark is made."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What is known of a group out of sight: its hosts may be down, or its processes frozen."""

    fenced: Callable[[], bool]
    """True if its processes can enter no quorum any more, wherever they may still run."""
    down: Callable[[Host], None]
    """To be called for a host that is down or whose pod stands, before anything is ended.
    Raises `NotDone`: this monitor may not act any more (a pause, another monitor)."""


@dataclass(frozen=True, slots=True)
class Why:
    """What a request is made for."""

    reason: str
    incident_id: IncidentId | None
    lost: Lost | None = None
    """None: the group is in sight."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a scheduler needs to work, and whether it is there."""

    what: str
    ok: bool
    said: str


# -- deadline ----------------------------------------------------------------------------------

LEAST_S: Final = 0.05
"""Less is not worth asking for: a process starts in some milliseconds, a connection in one."""


class Deadline:
    def __init__(
        self,
        timeout_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._sleep = sleep
        self._end_s = now() + timeout_s

    def left_s(self, late: str = "", after_s: float = 0.0) -> float:
        """The seconds left after these; `late`: the message if none are.

        Raises:
            NotDone: none are left.
        """
        left_s = self._end_s - self._now() - after_s
        if left_s < LEAST_S:
            raise NotDone(late or f"not within {self._timeout_s:g} s")
        return left_s

    def share_left(self) -> float:
        """The time left, as a share of the whole."""
        return max(0.0, (self._end_s - self._now()) / max(self._timeout_s, LEAST_S))

    def pause(self, seconds: float, late: str = "") -> None:
        """Wait, but not beyond the end.

        Raises:
            NotDone: nothing would be left afterwards.
        """
        self.left_s(late, after_s=seconds)
        self._sleep(seconds)


T = TypeVar("T")
_FIRST_RETRY_S: Final = 0.25
_LONGEST_RETRY_S: Final = 5.0


def retrying(ask: Callable[[], T], deadline: Deadline) -> T:
    """Call `ask`, and again while what it raises may pass; returns its result.

    Raises:
        NotDone: it does not pass, or not within the deadline.
    """
    failures = 0
    while True:
        try:
            return ask()
        except NotDone as exc:
            if exc.retry_s is None:
                raise
            failures += 1
            wait_s = backoff_s(failures, _FIRST_RETRY_S, _LONGEST_RETRY_S)
            deadline.pause(max(wait_s * random.uniform(0.8, 1.2), exc.retry_s), str(exc))  # noqa: S311


# -- scheduler ---------------------------------------------------------------------------------


class Scheduler(ABC):
    """One scheduler of hosts and jobs.

    A driver implements each request, with a deadline; whatever it raises becomes an `Outcome`
    here.
    """

    name: str
    """Shown to people, in logs and metrics, such as `slurm`; holds no secret."""
    every_s = 15.0
    """Between two looks at its hosts."""

    def __init__(self, everyone: Everyone, owner: Owner) -> None:
        """`owner` names the quarantine list whose marks are ours."""
        self._everyone = everyone
        self._owner = owner

    def cordon(self, host: Host, why: Why, timeout_s: float) -> Outcome:
        """Let nothing new start on a host; what runs there stays."""
        work = partial(self._cordon, host, why)
        return self._outcome(work, timeout_s, f"{host} not cordoned")

    def uncordon(self, host: Host, reason: str, timeout_s: float) -> Outcome:
        """Take back our own cordon; somebody else's stays."""
        work = partial(self._uncordon, host, reason)
        return self._outcome(work, timeout_s, f"{host} not uncordoned")

    def remove(
        self, group: GroupName, places: Sequence[Place], why: Why, timeout_s: float
    ) -> Outcome:
        """End what runs a group at these places, and nothing of any other group."""

        def remove(deadline: Deadline) -> Outcome:
            if not places:
                raise NotDone("no rank of it is known")
            others = [place for place in self._everyone() if group_of(place.rank) != group]
            return self._remove(group, places, others, why, deadline)

        return self._outcome(remove, timeout_s, f"{group} not removed")

    def cordoned(self, timeout_s: float) -> Sequence[Host] | None:
        """The hosts that have our cordon now; None if that is not known."""
        try:
            hosts = self._cordoned(self._deadline(timeout_s))
            return None if hosts is None else tuple(sorted(set(hosts)))
        except Exception:  # noqa: BLE001 - whatever it is, what is ours is not known
            return None

    def testimonies(self, _hosts: Collection[Host], _timeout_s: float) -> Iterable[Said]:
        """What it says of hosts, ours among them; our own cordons are left out.

        Raises:
            NotDone: not all of it can be read; what came before counts.
        """
        return ()

    def ends(self, _places: Sequence[Place], _timeout_s: float) -> Iterable[Ended]:
        """How what ran at these places ended, or how it looks; a place of which it knows nothing
        is left out.

        Raises:
            NotDone: not all of it can be read; what came before counts.
        """
        return ()

    def tried(self, timeout_s: float) -> Outcome:
        """Try if it can be asked now; changes nothing."""
        return self._outcome(self._reach, timeout_s, "it cannot be asked")

    @abstractmethod
    def checks(self, timeout_s: float) -> Sequence[Check]:
        """Check which requests would work; changes nothing."""

    @abstractmethod
    def close(self) -> None:
        """Close threads and connections."""

    # -- what a driver brings ------------------------------------------------------------------

    def _reach(self, _deadline: Deadline) -> Outcome:
        return Outcome(True, "")

    @abstractmethod
    def _cordon(self, host: Host, why: Why, deadline: Deadline) -> Outcome: ...

    @abstractmethod
    def _uncordon(self, host: Host, reason: str, deadline: Deadline) -> Outcome: ...

    @abstractmethod
    def _remove(
        self, group: GroupName, places: Sequence[Place], others: Sequence[Place], why: Why,
        deadline: Deadline,
    ) -> Outcome: ...  # fmt: skip

    @abstractmethod
    def _cordoned(self, deadline: Deadline) -> Iterable[Host] | None: ...

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s)

    def _crash(self, exc: Exception) -> str:
        """The text shown for a bug."""
        return f"{type(exc).__name__}: {exc}"

    def _outcome(
        self, work: Callable[[Deadline], Outcome], timeout_s: float, failed: str
    ) -> Outcome:
        try:
            return work(self._deadline(timeout_s))
        except NotDone as exc:
            return Outcome(False, f"{failed}: {exc}")
        except Exception as exc:  # noqa: BLE001 - the registry's, the store's, a client's
            return Outcome(False, f"{failed}: {self._crash(exc)}")
