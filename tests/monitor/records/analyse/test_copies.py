"""Files that were copied are dated later than the records in them were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Analysis
from tests.corpus.cases import Case

RUNNING = Case("healthy", "DP", "full", blocking=False, salt=2)
SKIPPED = Case("not_entered", "DP", "full", blocking=True)


def copied(case: Case, folder: Path, after_s: int) -> Analysis:
    built = case.build()
    assert built is not None
    built.write(folder)
    for path in folder.iterdir():
        at = path.stat().st_mtime_ns + after_s * 10**9
        os.utime(path, ns=(at, at))
    return analyse(load_job([folder], world_size=built.world, workers=1))


def test_whom_the_date_of_a_copy_accuses_is_accused_with_that_reservation(tmp_path) -> None:
    analysis = copied(RUNNING, tmp_path, 1800)
    assert not analysis.culprits or "known from the files' dates alone" in analysis.notes[0]


@pytest.mark.parametrize("after_s", [0, 86_400])
def test_the_records_of_a_running_job_accuse_nobody(after_s, tmp_path) -> None:
    assert copied(RUNNING, tmp_path, after_s).culprits == ()


@pytest.mark.parametrize("after_s", [0, 1800])
def test_whom_the_records_accuse_needs_no_date(after_s, tmp_path) -> None:
    analysis = copied(SKIPPED, tmp_path, after_s)
    assert analysis.culprits
    assert not any("dates alone" in note for note in analysis.notes)
