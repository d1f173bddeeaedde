"""Stacks of the ranks of one moment: suspects first, victims with equal stacks together.

Reads what py-spy prints (`Thread ID (idle): "MainThread"` and frames below it) and the same format
from WorkerServers; other text is shown as it is. Two ranks are alike if their main threads are at
the same lines: helper threads wait at different ones.

A bundle's stacks are read when the page of its incident is requested: in the thread of
the request, with bounds on bytes and time, the suspects' first, one bundle at a time; cached
while the bundle does not change. Flight records are not read here: their
analysis takes seconds of CPU, which the tick needs (`lightkeeper analyze` has its own process).
"""

from __future__ import annotations

import re
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, takewhile
from pathlib import Path
from typing import Final

from markupsafe import Markup

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.units import clean, grouped
from lightkeeper.monitor.records.files import Manifest, read_manifest
from lightkeeper.monitor.show.templating import moment as shown_time
from lightkeeper.monitor.show.templating import render
from lightkeeper.monitor.show.web.incident_page import BundleStacks

_HEAD: Final = re.compile(
    r'Thread [^"(:]{1,40}(?:\(([^)]{0,60})\))?:?(?: "(.{0,200})"| \((.{0,60})\))?'
)
"""py-spy adds the thread's state, the rank itself does not (`worker_server.rank.last_words`)."""
_OURS: Final = re.compile(r"\((?:[^()]*/)?worker_server/[^()]*\)")
_FRAMES, _THREADS, _NAMED = 60, 24, 24
_CROWDS: Final = 16
_LINE: Final = 240
_MAIN: Final = "MainThread"


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank's answer to a request for its stacks."""

    rank: str
    text: str | None
    """None: no stacks came."""
    why: str = ""
    """Why not."""


@dataclass(frozen=True, slots=True)
class StackThread:
    name: str
    state: str
    frames: tuple[str, ...]
    """Innermost first."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each frame; several of ours between others are one line, and beside it what they are."""
        rows: list[tuple[str, str]] = []
        for ours, run in groupby(self.frames, lambda frame: _OURS.search(frame) is not None):
            frames = list(run)
            folded = ours and rows and len(frames) > 1
            text = f"... {len(frames)} frames of lightkeeper"
            rows += [(text, ", ".join(frames))] if folded else [(frame, "") for frame in frames]
        return rows


@dataclass(frozen=True, slots=True)
class StackCrowd:
    """Ranks of one moment whose main threads are at the same lines."""

    role: str
    ranks: tuple[str, ...]
    threads: tuple[StackThread, ...]
    """Threads of the first rank: its main thread, then the others."""
    at: str
    """The innermost line, and for stacks of an earlier moment their WorkerServer's heading."""
    opened: bool


@dataclass(frozen=True, slots=True)
class MomentStacks:
    moment: str
    crowds: tuple[StackCrowd, ...]
    elsewhere: tuple[int, ...]
    """Numbers of ranks that are elsewhere and not shown, by role."""
    missing: tuple[tuple[str, tuple[str, ...]], ...]
    """Why none came, and from whom."""


def by_moment(
    moments: Mapping[str, Sequence[RankStacks]], suspects: Sequence[str], role: str = "culprit"
) -> str:
    """All moments, oldest first; unfolded where the suspects moved since the previous one.

    `role`: of the suspects, `culprit` or `candidate`.
    """
    parts, before = [], None
    for moment, taken in moments.items():
        now = {stacks.rank: _standing(_threads(stacks.text)) for stacks in taken
               if stacks.text is not None and stacks.rank in suspects}  # fmt: skip
        as_before = Markup("{}: the {}s as before").format(moment, role)
        heading = moment if before is None or now != before else as_before
        if taken:
            parts.append(_stand(heading, taken, suspects, role, opened=now != before))
        before = now
    return render("stacks.html", stands=parts, named=_NAMED, frames=_FRAMES, others=_THREADS)


def _stand(
    moment: str, taken: Sequence[RankStacks], suspects: Sequence[str], role: str, *, opened: bool
) -> MomentStacks:
    own = [stacks for stacks in taken if stacks.rank in suspects]
    others = [stacks for stacks in taken if stacks.rank not in suspects]
    first, left = _crowds(own, role, opened=opened)
    then, more = _crowds(others, "waits", opened=opened and not own)
    by_why = grouped((clean(each.why, 200), each.rank) for each in taken if each.text is None)
    missing = tuple((why, tuple(ranks)) for why, ranks in sorted(by_why.items())[:8])
    return MomentStacks(moment, (*first, *then), tuple(n for n in (left, more) if n), missing)


def _crowds(
    taken: Sequence[RankStacks], role: str, *, opened: bool
) -> tuple[list[StackCrowd], int]:
    """The largest first, and how many ranks are left out."""
    read = [(each, _threads(each.text)) for each in taken if each.text is not None]
    alike = grouped((_standing(threads), (stacks, threads)) for stacks, threads in read)
    ordered = sorted(alike.values(), key=lambda some: (-len(some), some[0][0].rank))
    shown = [_crowd(some, role, opened=opened) for some in ordered[:_CROWDS]]
    return shown, sum(len(some) for some in ordered[_CROWDS:])


def _crowd(
    some: Sequence[tuple[RankStacks, list[StackThread]]], role: str, *, opened: bool
) -> StackCrowd:
    first, threads = some[0]
    text = first.text or ""
    main = _main(threads)
    at = "" if main is None or not main.frames else f" in {main.frames[0]}"
    head = takewhile(lambda line: line.startswith("#"), text[:1000].splitlines())
    heading = " ".join(line.lstrip("# ") for line in head)
    old = f" ({clean(heading, 300)})" if heading else ""
    others = [thread for thread in threads if thread is not main]
    ranks = tuple(stacks.rank for stacks, _ in some)
    return StackCrowd(role, ranks, (*([main] if main else ()), *others), at + old, opened)


def _threads(text: str) -> list[StackThread]:
    """The threads in py-spy's output; other text as one thread."""
    threads: list[tuple[str, str, list[str]]] = []
    lines = dropwhile(lambda line: line.startswith("#"), text[:1_000_000].splitlines())
    for raw in takewhile(lambda line: not line.startswith("#"), lines):  # older stacks follow
        head = _HEAD.fullmatch(raw)
        if head is not None:
            name = head[2] or head[3] or "a thread"
            threads.append((clean(name, _LINE), clean(head[1] or "", 60), []))
        elif threads and raw.strip():
            threads[-1][2].append(clean(raw.strip(), _LINE))
    if not threads:
        every = tuple(clean(line, _LINE) for line in text[:100_000].splitlines() if line.strip())
        return [StackThread("as it came", "", every)]
    return [StackThread(name, state, tuple(frames)) for name, state, frames in threads]


def _main(threads: Sequence[StackThread]) -> StackThread | None:
    named = [thread for thread in threads if thread.name == _MAIN]
    return next(iter(named or threads), None)


def _standing(threads: Sequence[StackThread]) -> tuple[str, ...]:
    main = _main(threads)
    return () if main is None else main.frames


# The stacks in a bundle.

_MOMENTS: Final = {"firing": "When it began to fire", "eviction": "Right before the eviction"}
_ONE_MAX: Final = 1 << 20
_ALL_MAX: Final = 8 << 20
"""Bytes of text, of one rank and of all."""
_PAGE_MAX: Final = 1 << 20
"""Characters: the page must open on a phone."""
_BUNDLE_MAX: Final = 256 << 20
_READ_S: Final = 2.0
"""A page waits no longer; the bundle has the rest."""
_CACHED: Final = 4
"""Bundles whose stacks are cached: open pages ask every two seconds."""
_BROKEN: Final = (
    KeyError, OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile,
)  # fmt: skip


class StacksReader:
    """What a page shows of each bundle. Safe to use from any thread."""

    def __init__(self, bundles: BundleDir) -> None:
        self._bundles = bundles
        self._lock = threading.Lock()
        self._cache: dict[tuple[IncidentId, int, int], BundleStacks] = {}

    def get(self, incident_id: IncidentId) -> BundleStacks:
        bundle = self._bundles.path(incident_id)
        if bundle is None:
            return BundleStacks()
        if not self._lock.acquire(timeout=_READ_S):
            why = "another incident's evidence is being read: load the page again"
            return BundleStacks(why=why)
        try:
            stat = bundle.stat()
            key = incident_id, stat.st_mtime_ns, stat.st_size
            if key not in self._cache:
                self._cache[key] = _read(bundle, stat.st_size)
                while len(self._cache) > _CACHED:
                    self._cache.pop(next(iter(self._cache)))
            return self._cache[key]
        except OSError as exc:
            return BundleStacks(why=f"the bundle cannot be read: {exc.strerror}")
        finally:
            self._lock.release()


def _read(bundle: Path, nbytes: int) -> BundleStacks:
    manifest = read_manifest(str(bundle)) if nbytes <= _BUNDLE_MAX else None
    if manifest is None:
        why = "is damaged" if nbytes <= _BUNDLE_MAX else "is too large for a page"
        return BundleStacks(why=f"the bundle {why}")
    role = "culprit" if manifest.incident.get("culprits") else "candidate"
    suspects = [str(name) for name in manifest.incident.get(f"{role}s", ())][:1000]
    try:
        with zipfile.ZipFile(bundle) as opened:
            taken = _taken(opened, manifest, frozenset(suspects))
    except _BROKEN as exc:
        return BundleStacks(why=f"the bundle is damaged: {clean(str(exc), 200)}")
    markup = by_moment(taken, suspects, role)
    if len(markup) > _PAGE_MAX:
        return BundleStacks(why="so many stacks are too much for a page")
    return BundleStacks(markup)


def _taken(
    opened: zipfile.ZipFile, manifest: Manifest, suspects: frozenset[str]
) -> dict[str, list[RankStacks]]:
    """What each rank gave in each moment; the suspects' are read first, within the bounds."""
    until_s, left = time.monotonic() + _READ_S, _ALL_MAX
    by_heading: dict[str, list[RankStacks]] = {}
    for moment in manifest.moments:
        if moment.name not in _MOMENTS:
            continue
        heading = Markup("{}, {}").format(_MOMENTS[moment.name], shown_time(moment.began_s))
        taken = by_heading[heading] = []
        parts = [part for part in moment.parts if part.part == "stacks"]
        for part in sorted(parts, key=lambda part: part.rank not in suspects):
            text, why = None, part.error or part.status
            if part.file is not None and (left <= 0 or time.monotonic() > until_s):
                why = "too much for a page; the bundle has them"
            elif part.file is not None:
                try:
                    with opened.open(part.file) as member:
                        raw = member.read(min(_ONE_MAX, left))
                    text, left = raw.decode(errors="replace"), left - len(raw)
                except _BROKEN as exc:
                    why = f"damaged: {exc}"
            taken.append(RankStacks(part.rank, text, why))
    return by_heading
