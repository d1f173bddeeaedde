"""The committed captures of real gloo ranks: unpacked, loaded, judged by their truth."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkeeper.monitor.records.findings import Analysis

FOLDER = Path(__file__).with_name("gloo")
KINDS = ("ring", "pickle", "json")


def truths() -> dict[str, dict[str, Any]]:
    return json.loads((FOLDER / "truth.json").read_text())


@dataclass(frozen=True)
class Captures:
    """All captures as folders with the dates that the files had."""

    folder: Path

    @classmethod
    def unpack(cls, folder: Path, source: Path = FOLDER) -> Captures:
        with zipfile.ZipFile(source / "captures.zip") as bundle:
            for name in bundle.namelist():
                case, _, last = name.partition("/")
                if last == "dates.json":
                    continue
                path = folder / case / last
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bundle.read(name))
                with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as inner:
                    inner.extractall(path.with_suffix(""))
            for case in {name.partition("/")[0] for name in bundle.namelist()}:
                _date(folder / case, json.loads(bundle.read(f"{case}/dates.json")))
        return cls(folder)

    def files(self, case: str, kind: str) -> Path:
        """A folder, as a job leaves it."""
        return self.folder / case / kind

    def bundle(self, case: str, kind: str) -> Path:
        """A zip without the files' dates, as somebody sends it."""
        return self.folder / case / f"{kind}.zip"


def _date(folder: Path, dates: Mapping[str, int]) -> None:
    for name, ns in dates.items():
        os.utime(folder / name, ns=(ns, ns))


def complaint(truth: Mapping[str, Any], analysis: Analysis) -> str | None:
    """What is wrong with an analysis; None: nothing."""
    findings = [
        (finding.kind.value, finding.culprits, finding.between) for finding in analysis.findings
    ]
    if not findings:
        silent = truth["may_be_silent"] or not truth["kinds"]
        return None if silent else f"nothing found, wanted {truth['kinds']}"
    if not truth["kinds"] and not truth["may_be_silent"]:
        return f"found {findings} where nothing is"
    accused, culprits = set(analysis.culprits), set(truth["culprits"])
    if accused - culprits:
        return f"accuses {sorted(accused - culprits)}: {findings}"
    unsure = not accused and truth["may_be_unsure"]
    if accused != culprits and not unsure and not truth["may_be_silent"]:
        return f"accuses {sorted(accused)}, not {sorted(culprits)}: {findings}"
    if (
        truth["kinds"]
        and not {kind for kind, _, _ in findings} & set(truth["kinds"])
        and not unsure
    ):
        return f"found {findings}, wanted one of {truth['kinds']}"
    return None
