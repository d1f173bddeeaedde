"""Evidence bundles among the zips: which of their members are read, and how they are dated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.dumps.choose import Read
from monitor.dumps.files import Source, find
from monitor.dumps.manifest import NAME, Manifest, Moment, Part, read_manifest
from monitor.flight_recorder.job import Problem


@dataclass(frozen=True, slots=True)
class Bundle:
    """One evidence bundle, and the moment whose flight records are taken."""

    path: str
    manifest: Manifest
    moment: Moment | None


@dataclass(frozen=True, slots=True)
class Opened:
    """What the bundles leave to be read."""

    sources: list[Source]
    bundle: Bundle | None = None
    """The latest, whose records are among `sources`."""
    lost: tuple[Read, ...] = ()
    """Ranks that were asked for their flight record in the moment taken, and gave none."""
    problems: tuple[Problem, ...] = ()


def bundle_in(paths: Sequence[Path]) -> Bundle | None:
    """The latest evidence bundle among these files and folders."""
    return open_bundles(find(paths)[0]).bundle


def open_bundles(sources: Sequence[Source]) -> Opened:
    """Of the latest bundle one moment's flight records, with the manifest's dates.

    Earlier ones are left out: a rank's record of another incident would be held against peers
    whose records are of this one.
    """
    named = dict.fromkeys(source.file for source in sources if source.member == NAME)
    found = [(file, read_manifest(file)) for file in named]
    bundles = [Bundle(file, one, one.chosen()) for file, one in found if one is not None]
    if not bundles:
        return Opened(list(sources))
    latest = max(bundles, key=lambda one: (one.manifest.latest_s, one.path))
    kept: list[Source] = []
    files = {one.path for one in bundles}
    for source in sources:
        if source.file not in files:
            kept.append(source)
        elif source.file == latest.path and latest.moment is not None:
            told = _part_of(latest.moment, source.member)
            if told is not None:
                kept.append(replace(source, whose=told.rank, taken_ns=told.taken_ns))
    lost = () if latest.moment is None else latest.moment.lost
    return Opened(
        kept,
        latest,
        tuple(_lost(latest, one) for one in lost),
        tuple(
            Problem(one.path, f"left out: {latest.path} is of a later incident")
            for one in bundles
            if one is not latest
        ),
    )


def _lost(bundle: Bundle, one: Part) -> Read:
    moment = "" if bundle.moment is None else bundle.moment.name
    where = Source(f"{bundle.path}/{moment}/{one.rank}", bundle.path, whose=one.rank)
    return Read(where, problem=f"no flight record: {one.error or one.status}")


def _part_of(moment: Moment, member: str | None) -> Part | None:
    return next((one for one in moment.records if one.file == member), None)
