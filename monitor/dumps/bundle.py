"""Evidence bundles among the zips: which of their members are read, and how they are dated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.dumps.choose import Read
from monitor.dumps.files import Source, find
from monitor.dumps.manifest import NAME, Manifest, Moment, Part, read_manifest


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
    bundles: tuple[Bundle, ...]
    lost: tuple[Read, ...]
    """Ranks that were asked for their flight record in the moment taken, and gave none."""


def bundles_in(paths: Sequence[Path]) -> tuple[Bundle, ...]:
    """The evidence bundles among these files and folders."""
    return open_bundles(find(paths)[0]).bundles


def open_bundles(sources: Sequence[Source]) -> Opened:
    """Of each bundle only one moment's flight records, with the manifest's dates."""
    named = [source.file for source in sources if source.member == NAME]
    bundles = {}
    for file in dict.fromkeys(named):
        manifest = read_manifest(file)
        if manifest is not None:
            bundles[file] = Bundle(file, manifest, manifest.chosen())
    kept: list[Source] = []
    for source in sources:
        bundle = bundles.get(source.file)
        if bundle is None:
            kept.append(source)
            continue
        told = None if bundle.moment is None else _part_of(bundle.moment, source.member)
        if told is not None:
            kept.append(replace(source, whose=told.rank, taken_ns=told.taken_ns))
    lost = [
        Read(Source(f"{bundle.path}/{bundle.moment.name}/{one.rank}", bundle.path, whose=one.rank),
             problem=f"no flight record: {one.error or one.status}")
        for bundle in bundles.values()
        if bundle.moment is not None
        for one in bundle.moment.lost
    ]  # fmt: skip
    return Opened(kept, tuple(bundles.values()), tuple(lost))


def _part_of(moment: Moment, member: str | None) -> Part | None:
    return next((one for one in moment.records if one.file == member), None)
