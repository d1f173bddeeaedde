"""Collects the evidence of an incident: asks the ranks concerned, and has the answers written.

When an incident fires, and again right before an eviction, all ranks concerned are asked for
everything at once, with one deadline. The evictor waits for the answers; nothing waits for the
disk. The states of all other ranks, and the records behind the verdict, are in the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import Final

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.bundles import (
    KINDS,
    BundleDir,
    BundleKind,
    CaptureTargets,
    Moment,
    MomentName,
    Part,
    PartStatus,
    concerned,
    fill,
    weigh,
)
from lightkeeper.monitor.act.http import Fetcher, FetchError, Question
from lightkeeper.monitor.act.poller import describe_status
from lightkeeper.monitor.background import BackgroundQueue
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.metric import KEPT, TICK_BUCKETS
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.incident import BundleView, Incident, State, incident_to_json
from lightkeeper.monitor.model.names import IncidentId, one_line
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot

log = logging.getLogger(__name__)

QUEUE: Final = 64
"""Moments that may wait to be taken; more incidents at once are one fault that many report."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One moment that is being taken. The evictor calls `wait`."""

    incident_id: IncidentId
    moment: MomentName
    limit_s: float
    began: float = field(default_factory=time.monotonic)
    answered: Future[str] = field(default_factory=Future)
    """Set when all answers are in memory, so that the ranks may end."""

    def wait(self) -> str:
        """Wait until the ranks have answered, at most until `limit_s` after the ticket was made."""
        left_s = self.began + self.limit_s - time.monotonic()
        try:
            return self.answered.result(max(0.0, left_s))
        except FutureTimeoutError:
            return f"not there within {self.limit_s:g} s: went on without"

    def done(self, said: str) -> None:
        if not self.answered.done():
            self.answered.set_result(said)


@dataclass(frozen=True, slots=True)
class Capture:
    ticket: Ticket | None
    """None: only the story is written again or, without an incident, the folder is tidied."""
    snapshot: Snapshot
    """What the monitor knew when the moment began."""
    incident: Incident | None
    eviction: Eviction | None = None

    @property
    def incident_id(self) -> IncidentId:
        """Also of an eviction by hand; empty: the folder is tidied."""
        if self.ticket is not None:
            return self.ticket.incident_id
        return IncidentId("") if self.incident is None else self.incident.id


_LOOP_LATE_S: Final = 0.5
"""A fetch loop later than this is broken: callers continue without it."""


@dataclass(slots=True)
class Budget:
    """Bytes that the answers of one moment may hold together; used on the fetch loop only."""

    left: int


_STATUSES: Final = {Failure.TIMEOUT: PartStatus.LATE, Failure.GARBAGE: PartStatus.GARBAGE}


def checked(parts: Sequence[Part], asked: Sequence[Observation]) -> list[Part]:
    """Check the answers; all answers of a rank are dropped if a stranger answers for it."""
    identities = {observation.rank: observation.identity for observation in asked}
    weighed = [weigh(part, identities[part.rank]) for part in parts]
    strange = {part.rank: part.error for part in weighed if part.status is PartStatus.STRANGER}
    return [
        replace(part, status=PartStatus.STRANGER, body=None, error=strange[part.rank])
        if part.rank in strange and part.body is not None
        else part
        for part in weighed
    ]


TIDY_S: Final = 3600.0
"""How often the folder is checked for bundles that are too old."""
STUCK_S: Final = 10.0
"""A write that takes longer is reported: a file server that is away hangs and reports nothing."""
_SILENT_S: Final = 0.5
"""Time for a rank that did not answer in this tick either: an eviction waits for all answers."""
MARGIN_S: Final = 0.5  # on top of the deadline: threads are scheduled late on busy hosts
_MIB: Final = 1024 * 1024


CAPTURES: Final = KEPT.counter("evidence_captures", "Captures of evidence, by moment and outcome.",
    ("moment", "outcome"), series="≤ 2 x 4",
    absent="none since the start")  # fmt: skip
SECONDS: Final = KEPT.histogram("evidence_capture_seconds",
    "Seconds until the ranks concerned had answered, or until the deadline.",
    buckets=TICK_BUCKETS, series="13")  # fmt: skip
WRITTEN: Final = KEPT.counter("evidence_written_bytes", "Bytes of bundles written.")
STORED: Final = KEPT.gauge("evidence_stored_bytes", "Bytes of bundles on disk.")


class Evidence:
    """Takes evidence in its own threads; no method waits for a rank, only `__init__` for the disk.

    Call `take` from the tick's thread only, the rest from any. Close it when done.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        fetcher: Fetcher,
        bundles: BundleDir,
        config: KeeperConfig,
        metrics: CollectorRegistry,
        version: str = "",
    ) -> None:
        self._clock = clock
        self._fetcher = fetcher
        self.bundles = bundles
        self._config = config
        self._captures, self._seconds = CAPTURES.on(metrics), SECONDS.on(metrics)
        self._written, self._stored = WRITTEN.on(metrics), STORED.on(metrics)
        self._version = version
        self._seen: Snapshot | None = None
        self._last: dict[IncidentId, Ticket] = {}
        self._troubles: dict[str, str] = {}
        self._tidied_s = clock.now_s()
        self._asking = threading.Lock()
        self._writing = threading.Lock()
        self._writing_since: float | None = None
        self._lanes = tuple(
            BackgroundQueue(name, self._work, QUEUE) for name in ("evidence", "evidence-evict")
        )
        self._open()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop; what is under way gets `timeout_s`."""
        for lane in self._lanes:
            lane.close(timeout_s)

    # -- what the tick and the evictor call ---------------------------------------------------

    def take(
        self, snapshot: Snapshot, incidents: Iterable[Incident], changed: Iterable[Incident]
    ) -> None:
        """Take in one tick, and begin to take evidence of firing incidents that have none yet."""
        self._seen = snapshot
        if not self._on:
            return
        for incident in incidents:
            has = incident.id in self._last or self.bundles.view(incident.id) is not None
            if incident.state is State.FIRING and not has:
                ticket = self._ticket(incident.id, MomentName.FIRING)
                self._begin(Capture(ticket, snapshot, incident), ticket)
        if snapshot.now_s - self._tidied_s >= TIDY_S:
            self._tidied_s = snapshot.now_s
            self._lanes[0].put(Capture(None, snapshot, None))
        for incident in changed:
            if not incident.open and self.bundles.view(incident.id) is not None:
                self._lanes[0].put(Capture(None, snapshot, incident))

    def look_again(self) -> None:
        """Read the folder again, in the background: another monitor may have written to it."""
        if self._on and self._seen is not None:
            self._lanes[0].put(Capture(None, self._seen, None))

    def before_eviction(self, eviction: Eviction, incident: Incident | None) -> Ticket | None:
        """The ticket that an eviction waits for: one of the last seconds, else a new one.

        None when no evidence is taken at all.
        """
        if not self._on or self._seen is None:
            return None
        with self._asking:
            last = self._last.get(eviction.incident_id)
        fresh_s = self._config.evidence_fresh_s
        if last is not None and time.monotonic() - last.began <= fresh_s:
            return last
        ticket = self._ticket(eviction.incident_id, MomentName.EVICTION)
        self._begin(Capture(ticket, self._seen, incident, eviction), ticket)
        return ticket

    # -- what is shown ------------------------------------------------------------------------

    def views(self, ids: Iterable[IncidentId]) -> Mapping[IncidentId, BundleView]:
        views = {incident_id: self.bundles.view(incident_id) for incident_id in ids}
        return {incident_id: view for incident_id, view in views.items() if view is not None}

    def troubles(self) -> tuple[str, ...]:
        troubles, since = tuple(self._troubles.values()), self._writing_since
        if since is not None and time.monotonic() - since > STUCK_S:
            troubles += (f"no evidence is kept: {self.bundles.folder} does not answer",)
        return troubles

    # -- taking it, in the lanes' threads -----------------------------------------------------

    @property
    def _on(self) -> bool:
        return self._config.evidence_count > 0

    def _ticket(self, incident_id: IncidentId, moment: MomentName) -> Ticket:
        return Ticket(incident_id, moment, self._config.evidence_deadline_s + MARGIN_S)

    def _begin(self, job: Capture, ticket: Ticket) -> None:
        with self._asking:
            self._last.pop(ticket.incident_id, None)
            self._last[ticket.incident_id] = ticket
            while len(self._last) > 4 * QUEUE:
                self._last.pop(next(iter(self._last)))
        lane = self._lanes[ticket.moment is MomentName.EVICTION]
        if not lane.put(job):
            ticket.done("not taken: too many incidents at once")
            self._count(ticket, "dropped")

    def _work(self, job: Capture) -> None:
        """One job; never raises."""
        try:
            if job.ticket is not None:
                self._take_moment(job, job.ticket)
            elif job.incident is None:
                with self._on_disk():
                    self.bundles.open()
                    self._tidy()
            elif self.bundles.path(job.incident_id) is not None:
                self._write(job, [])
        except OSError as exc:
            self._trouble("write", f"evidence of {job.incident_id} is not kept: {_why(exc)}")
            self._count(job.ticket, "unwritten")
        except Exception as exc:
            about = {"incident": job.incident_id}
            log.exception("evidence of %s failed", job.incident_id, extra=about)
            self._trouble("write", f"evidence failed: {type(exc).__name__}: {exc}")
            self._count(job.ticket, "failed")
        finally:
            if job.ticket is not None:
                job.ticket.done("failed; the monitor's log has the details")

    def _take_moment(self, job: Capture, ticket: Ticket) -> None:
        config, began, began_s = self._config, time.monotonic(), self._clock.now_s()
        groups = () if job.eviction is None else (job.eviction.group,)
        whom = concerned(job.incident, groups, job.snapshot.observations, config.evidence_ranks)
        said = self._ask(whom.asked)
        seconds = time.monotonic() - began
        came = sum(part.body is not None for part in said)
        ticket.done(f"{came} of {len(said)} parts of {len(whom.asked)} ranks in {seconds:.1f} s")
        self._seconds.observe(seconds)
        parts = checked(said, whom.asked)
        self._write(job, [Moment(ticket.moment, began_s, began_s + seconds, whom, parts)])
        self._count(ticket, _outcome(parts, whom))

    def _ask(self, whom: Sequence[Observation]) -> list[Part]:
        """Ask every rank for every part; returns the answers in order, not yet checked, by about
        the deadline.
        """
        deadline_s = self._config.evidence_deadline_s
        end = time.monotonic() + deadline_s
        budget = Budget(int(self._config.evidence_mib * _MIB))
        asked = [(observation, kind) for observation in whom for kind in KINDS]
        soon = min(end, time.monotonic() + _SILENT_S)

        async def all_of_them() -> list[Part]:
            fetches = (
                self._fetch_part(seen, kind, soon if seen.report is None else end, budget)
                for seen, kind in asked
            )
            return await asyncio.gather(*fetches)

        future = self._fetcher.submit(all_of_them())
        try:
            return future.result(timeout=deadline_s + _LOOP_LATE_S)
        except (FutureTimeoutError, CancelledError):
            future.cancel()
            late = "the monitor's own loop is late or has ended"
            return [Part(seen.rank, kind, PartStatus.LATE, error=late) for seen, kind in asked]

    async def _fetch_part(
        self, observation: Observation, kind: BundleKind, end: float, budget: Budget
    ) -> Part:
        """Fetch one part; if the whole is too large, a smaller answer."""
        whole = await self._fetch(observation, kind, "", end, budget)
        if not kind.smaller or whole.status is not PartStatus.TOO_LARGE:
            return whole
        less = await self._fetch(observation, kind, kind.smaller, end, budget)
        error = f"all of it is over {kind.max_bytes} bytes: only what is unfinished"
        return whole if less.body is None else replace(less, status=PartStatus.CUT, error=error)

    async def _fetch(
        self, observation: Observation, kind: BundleKind, query: str, end: float, budget: Budget
    ) -> Part:
        taken = 0

        def take(nbytes: int) -> None:
            nonlocal taken
            taken, budget.left = taken + nbytes, budget.left - nbytes
            if budget.left < 0:  # give it back at once: later answers may fit
                taken, budget.left = 0, budget.left + taken
                raise FetchError(Failure.GARBAGE, "the bundle is full", too_large=True)

        question = Question(
            observation.url + kind.path + query,
            timeout_s=end - time.monotonic(),
            max_bytes=kind.max_bytes,
            group=observation.identity.group,
            meter=take,
        )
        try:
            answer = await self._fetcher.fetch(question)
        except FetchError as exc:
            budget.left += taken
            status = _STATUSES.get(exc.failure, PartStatus.UNREACHABLE)
            status = PartStatus.TOO_LARGE if exc.too_large else status
            return Part(observation.rank, kind, status, error=exc.detail)
        whole = Part(
            observation.rank, kind, PartStatus.OK, answer.body, self._clock.now_s(),
            answer.seconds, answer.age_s,
        )  # fmt: skip
        if answer.status == 200:
            return whole
        said = one_line(answer.body[:200].decode(errors="replace"))
        why = f"{describe_status(answer.status)}: {said}"
        return replace(whole, status=PartStatus.REFUSED, body=None, error=why)

    def _write(self, job: Capture, moments: list[Moment]) -> None:
        eviction = job.eviction
        manifest = {
            "written_by": f"lightkeeper {self._version}",
            "written_s": self._clock.now_s(),
            "id": job.incident_id,
            "incident": None if job.incident is None else incident_to_json(job.incident),
            "eviction": None
            if eviction is None
            else {"group": eviction.group, "reason": eviction.reason, "author": eviction.author},
        }
        with self._on_disk():
            if "open" in self._troubles:
                self.bundles.open()
                self._troubles.pop("open", None)
            before = self.bundles.path(job.incident_id)
            if before is not None and not before.exists():
                before = None
            nbytes = self.bundles.write(
                job.incident_id, lambda file: fill(file, manifest, moments, before)
            )
            self._written.inc(nbytes)
            self._troubles.pop("write", None)
            self._tidy()

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Allow one writer at a time, and note when it began."""
        with self._writing:
            self._writing_since = time.monotonic()
            try:
                yield
            finally:
                self._writing_since = None

    def _tidy(self) -> None:
        try:
            self.bundles.tidy(self._clock.now_s())
        except OSError as exc:
            self._trouble("tidy", f"old evidence cannot be removed: {_why(exc)}")
        else:
            self._troubles.pop("tidy", None)
        self._stored.set(self.bundles.nbytes)

    def _open(self) -> None:
        if not self._on:
            return
        try:
            self.bundles.open()
        except OSError as exc:
            where = self.bundles.folder
            self._trouble("open", f"no evidence can be kept in {where}: {_why(exc)}")
        else:
            self._tidy()

    def _trouble(self, what: str, why: str) -> None:
        if self._troubles.get(what) != why:
            log.warning("%s", why)
        self._troubles[what] = why

    def _count(self, ticket: Ticket | None, outcome: str) -> None:
        moment = "story" if ticket is None else str(ticket.moment)
        self._captures.labels(moment, outcome).inc()


def _outcome(parts: list[Part], whom: CaptureTargets) -> str:
    taken = sum(part.body is not None for part in parts)
    if not taken:
        return "empty"
    return "complete" if taken == len(parts) and not whom.left_out else "partial"


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc)
