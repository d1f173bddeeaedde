"""The stacks in a bundle, for the page of its incident: read when somebody looks.

In the thread of the request, with bounds on bytes and time, the culprits' first, one bundle at a
time; kept in memory while the bundle stays as it is. Flight records are not read here: their
analysis takes seconds of CPU, which the tick needs (`lightkeeper analyze` has its own process).
"""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from monitor.dumps.manifest import Manifest, Moment, Part, read_manifest
from monitor.evidence.shelf import Shelf
from monitor.names import IncidentId
from monitor.reports.incident_evidence import Stacks
from monitor.reports.incident_stacks import Taken, by_moment
from monitor.reports.text import moment as time_of_day
from monitor.reports.wording import clean

_MOMENTS: Final = {
    "firing": "When it began to fire",
    "eviction": "Right before the eviction",
}
_ONE_MAX: Final = 1 << 20
_ALL_MAX: Final = 8 << 20
"""Bytes of text: of one rank, and of all."""
_PAGE_MAX: Final = 1 << 20
"""Characters: the page is to open on a phone."""
_BUNDLE_MAX: Final = 256 << 20
_READ_S: Final = 2.0
"""A page waits no longer: what is not read by then is in the bundle."""
_HELD: Final = 4
"""Bundles whose stacks are kept in memory: open pages ask every two seconds."""
_BROKEN: Final = (
    KeyError, OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile,
)  # fmt: skip


class StacksReader:
    """What a page shows of each bundle. Safe to use from any thread."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._held: dict[IncidentId, Stacks] = {}

    def get(self, incident_id: IncidentId) -> Stacks:
        """What there is; why there is nothing else."""
        bundle = self._shelf.path(incident_id)
        if bundle is None:
            return Stacks()
        if not self._lock.acquire(timeout=_READ_S):
            return Stacks(why="another incident's evidence is being read: load the page again")
        try:
            return self._of(incident_id, bundle)
        except OSError as exc:
            return Stacks(why=f"the bundle cannot be read: {exc.strerror}")
        finally:
            self._lock.release()

    def _of(self, incident_id: IncidentId, bundle: Path) -> Stacks:
        known = bundle.stat()
        stamp = f"{known.st_mtime_ns}-{known.st_size}"
        held = self._held.get(incident_id)
        if held is None or held.stamp != stamp:
            held = self._held[incident_id] = _read(bundle, stamp, known.st_size)
            while len(self._held) > _HELD:
                self._held.pop(next(iter(self._held)))
        return held


def _read(bundle: Path, stamp: str, nbytes: int) -> Stacks:
    manifest = read_manifest(str(bundle)) if nbytes <= _BUNDLE_MAX else None
    if manifest is None:
        why = "is damaged" if nbytes <= _BUNDLE_MAX else "is too large for a page"
        return Stacks(why=f"the bundle {why}", stamp=stamp)
    culprits = [str(one) for one in manifest.incident.get("culprits", ())][:1000]
    try:
        with zipfile.ZipFile(bundle) as opened:
            taken = _taken(opened, manifest, frozenset(culprits))
    except _BROKEN as exc:
        return Stacks(why=f"the bundle is damaged: {clean(str(exc), 200)}", stamp=stamp)
    made = by_moment(taken, culprits)
    if len(made) > _PAGE_MAX:
        return Stacks(why="so many stacks are too much for a page", stamp=stamp)
    return Stacks(made, stamp=stamp)


def _taken(
    opened: zipfile.ZipFile, manifest: Manifest, culprits: frozenset[str]
) -> dict[str, list[Taken]]:
    """Everybody's stacks, moment by moment."""
    budget = _Budget()
    found: dict[str, list[Taken]] = {}
    for moment in manifest.moments:
        name = _MOMENTS.get(moment.name)
        if name is not None:
            at = time_of_day(int(moment.began_s * 1e9))
            found[f"{name}, {at} UTC"] = list(_of_moment(opened, moment, culprits, budget))
    return found


class _Budget:
    """What reading one bundle may take."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + _READ_S
        self.left = _ALL_MAX

    def spent(self) -> bool:
        """Whether nothing more is to be read."""
        return self.left <= 0 or time.monotonic() > self._until_s


def _of_moment(
    opened: zipfile.ZipFile, moment: Moment, culprits: frozenset[str], budget: _Budget
) -> Iterator[Taken]:
    parts = [part for part in moment.parts if part.part == "stacks"]
    parts.sort(key=lambda part: part.rank not in culprits)  # stable: else as they stand there
    for part in parts:
        if part.file is None:
            yield Taken(part.rank, None, part.error or part.status)
        elif budget.spent():
            yield Taken(part.rank, None, "too much for a page; the bundle has them")
        else:
            yield _one(opened, part, budget)


def _one(opened: zipfile.ZipFile, part: Part, budget: _Budget) -> Taken:
    try:
        with opened.open(part.file or "") as member:
            text = member.read(min(_ONE_MAX, budget.left))
    except _BROKEN as exc:
        return Taken(part.rank, None, f"damaged: {exc}")
    budget.left -= len(text)
    return Taken(part.rank, text.decode(errors="replace"))
