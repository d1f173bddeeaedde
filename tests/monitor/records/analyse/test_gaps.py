"""Dumps whose numbers leave a rank out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.cli import main
from monitor.model.verdict import Confidence
from monitor.records import files
from monitor.records.analyse import analyse
from monitor.records.files import load
from monitor.records.findings import Fault
from monitor.records.job import Job
from tests.monitor.records.dumps import as_json, as_pickle, config, entry, gloo, nccl, pending

Dump = dict[str, Any]


def waiting(make: Callable[..., Dump] = gloo, **how: Any) -> Dump:
    return make(entry(0, 1), pending(1, 2), **how)


def idle(make: Callable[..., Dump] = gloo, **how: Any) -> Dump:
    return make(entry(0, 1), **how)


def old(dump: Dump) -> Dump:
    """As torch 2.3 wrote it: no members, no description of a group."""
    rows = [row | {"process_group": row["process_group"][0]} for row in dump["entries"]]
    return {"version": "2.1", "entries": rows}


def loaded(folder: Path, dumps: Mapping[str, Dump], *, zipped: bool = False) -> Job:
    if zipped:
        with zipfile.ZipFile(folder / "dumps.zip", "w") as bundle:
            for name, dump in dumps.items():
                bundle.writestr(f"job/{name}", as_pickle(dump))
        return load([folder / "dumps.zip"], workers=1)
    for name, dump in dumps.items():
        (folder / name).write_bytes(as_json(dump))
    return load([folder], workers=1)


def named(ranks: Iterable[int], form: str = "rank_{}", dump: Dump | None = None) -> dict[str, Dump]:
    return {form.format(rank): dump or waiting() for rank in ranks}


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("form", ["rank_{}", "{}.json", "dump_rank{}_node7.pickle",
                                  "nccl_trace_rank_{}_20261122.json", "d{}.pkl"])  # fmt: skip
@pytest.mark.parametrize("missing", [0, 2])
def test_a_gap_in_the_numbers_is_a_rank_without_a_dump(
    missing: int, form: str, zipped: bool, tmp_path: Path
) -> None:
    some = [rank for rank in range(4) if rank != missing]
    found = loaded(tmp_path, named(some, form), zipped=zipped)
    assert (found.expected, found.silent, found.gaps) == ((0, 1, 2, 3), (missing,), (missing,))
    analysis = analyse(found)
    (one,) = analysis.findings
    assert (one.kind, one.confidence) == (Fault.SILENT, Confidence.LIKELY)
    assert (one.culprits, one.victims) == ((missing,), tuple(some))
    assert any(f"Rank {missing} left no dump" in note for note in analysis.notes)


def test_dumps_of_mixed_versions_have_gaps_too(tmp_path: Path) -> None:
    dumps = {
        "rank_0": waiting(nccl),
        "rank_1": waiting(nccl, version="2.12"),
        "rank_3": old(waiting(nccl)),
    }
    assert analyse(loaded(tmp_path, dumps)).culprits == (2,)


def test_dumps_that_tell_neither_members_nor_what_a_group_is_have_gaps_too(tmp_path: Path) -> None:
    found = analyse(loaded(tmp_path, named((0, 1, 3), dump=old(waiting(nccl)))))
    assert found.culprits == (2,)


def test_one_missing_at_the_end_is_told_by_the_members_that_records_name(tmp_path: Path) -> None:
    eight = config(**{"0": ("default_pg", range(8))})
    found = loaded(tmp_path, named(range(7), dump=waiting(nccl, pg_config=eight)))
    assert (found.silent, found.gaps) == ((7,), ())
    assert analyse(found).culprits == (7,)


def test_of_one_missing_in_the_middle_and_one_at_the_end_either_may_hold_up_the_rest(
    tmp_path: Path,
) -> None:
    eight = config(**{"0": ("default_pg", range(8))})
    found = loaded(tmp_path, named((0, 1, 3, 4, 5, 6), dump=waiting(nccl, pg_config=eight)))
    assert found.silent == (2, 7)
    (one,) = analyse(found).findings
    assert (one.kind, one.confidence, one.culprits) == (Fault.SILENT, Confidence.UNSURE, ())
    assert one.between == ((2,), (7,))


def test_who_is_missing_is_not_accused_of_what_another_explains(tmp_path: Path) -> None:
    found = analyse(loaded(tmp_path, named((0, 3, 4)) | {"rank_1": idle()}))
    assert found.culprits == (1,)
    assert any("Rank 2 left no dump" in note for note in found.notes)


def test_in_a_job_that_stands_nowhere_it_is_only_said_that_a_dump_is_missing(
    tmp_path: Path,
) -> None:
    found = analyse(loaded(tmp_path, named((0, 1, 3), dump=idle())))
    assert not found.findings
    assert any("Rank 2 left no dump" in note for note in found.notes)


def test_a_rank_of_another_group_is_not_accused_of_a_group_s_wait(tmp_path: Path) -> None:
    tp = config(**{"0": ("default_pg", (0, 1)), "5": ("tp", (0, 1))})
    rows = [row | {"process_group": ("5", "tp"), "pg_id": 5} for row in waiting()["entries"]]
    dumps = {"rank_0": nccl(*rows, pg_config=tp), "rank_1": nccl(*rows, pg_config=tp)}
    dumps["rank_3"] = idle(nccl, pg_config=config(**{"0": ("default_pg", (3,))}))
    found = loaded(tmp_path, dumps)
    assert found.gaps == (2,)
    assert not analyse(found).culprits


def test_where_members_are_unknown_a_missing_rank_may_be_of_another_group(tmp_path: Path) -> None:
    tp = waiting()
    tp["entries"] = [row | {"process_group": ["5", "tp"], "pg_id": 5} for row in tp["entries"]]
    dumps = {"rank_0": tp, "rank_1": tp, "rank_3": idle(), "rank_4": idle()}
    (one,) = analyse(loaded(tmp_path, dumps)).findings
    assert (one.confidence, one.culprits) == (Confidence.UNSURE, ())
    assert "nothing tells whether the others wait for it" in one.reason


@pytest.mark.parametrize("ranks", [(0, 1, 2), (12341, 12399, 14000)], ids=["whole", "pids"])
def test_without_a_gap_nobody_is_missing(ranks: tuple[int, ...], tmp_path: Path) -> None:
    found = loaded(tmp_path, named(ranks))
    assert (found.silent, found.gaps) == ((), ())


def test_whoever_is_in_no_quorum_is_not_missing(tmp_path: Path) -> None:
    row = pending(0, 1, process_group=["", ""], pg_id=2)
    folder = tmp_path / "job_quorum_3"
    folder.mkdir()
    for rank in (0, 1, 3):
        (folder / str(rank)).write_bytes(as_pickle({"version": "2.10", "entries": [row]}))
    assert load([tmp_path], workers=1).gaps == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("dump_rank3_host7_2026.json", 3),
        ("dump_rank3_1732280000.pickle", 3),
        ("local_rank_0_rank_5", 5),
        ("rank_1_of_8", 1),
        ("rank3_10.0.0.17", 3),
        ("rank3.log", None),
        ("trace_1732280000", None),
    ],
)
def test_where_a_name_says_rank_it_means_it(name: str, rank: int | None) -> None:
    assert files.rank_of(name) == rank


def test_the_command_says_who_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(tmp_path, named((0, 1, 3)))
    assert main(["analyze", str(tmp_path), "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["culprits"], said["ranks_silent"], said["ranks_expected"]) == ([2], [2], 4)
