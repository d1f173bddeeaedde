"""Dumps whose numbers leave a rank out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import Job
from tests.monitor.records.dumps import as_json, as_pickle, config, entry, gloo, nccl, pending

Dump = dict[str, Any]


def waiting(make: Callable[..., Dump] = gloo, **how: Any) -> Dump:
    return make(entry(0, 1), pending(1, 2), **how)


def idle(make: Callable[..., Dump] = gloo, **how: Any) -> Dump:
    return make(entry(0, 1), **how)


def old(dump: Dump) -> Dump:
    """With neither members nor a description of a group."""
    rows = [row | {"process_group": (row["process_group"][0], "")} for row in dump["entries"]]
    return {"version": "2.4", "entries": rows}


def loaded(folder: Path, dumps: Mapping[str, Dump], *, zipped: bool = False) -> Job:
    if zipped:
        with zipfile.ZipFile(folder / "dumps.zip", "w") as bundle:
            for name, dump in dumps.items():
                bundle.writestr(f"job/{name}", as_pickle(dump))
        return load_job([folder / "dumps.zip"], workers=1)
    for name, dump in dumps.items():
        (folder / name).write_bytes(as_json(dump))
    return load_job([folder], workers=1)


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
    records = loaded(tmp_path, named(some, form), zipped=zipped)
    assert (records.expected, records.silent, records.gaps) == (
        (0, 1, 2, 3),
        (missing,),
        (missing,),
    )
    analysis = analyse(records)
    (finding,) = analysis.findings
    assert (finding.kind, finding.confidence) == (Fault.SILENT, Confidence.LIKELY)
    assert (finding.culprits, finding.victims) == ((missing,), tuple(some))
    assert any(f"Rank {missing} left no dump" in note for note in analysis.notes)


EIGHT = config(**{"0": ("default_pg", range(8))})
TP = config(**{"0": ("default_pg", (0, 1)), "5": ("tp", (0, 1))})


def in_tp(dump: Dump) -> Dump:
    rows = [row | {"process_group": ["5", "tp"], "pg_id": 5} for row in dump["entries"]]
    return dump | {"entries": rows}


@pytest.mark.parametrize(
    ("dumps", "silent", "gaps", "findings"),
    [
        pytest.param(
            {"rank_0": waiting(nccl), "rank_1": waiting(nccl, version="2.12"),
             "rank_3": old(waiting(nccl))},
            (2,), (), [(Fault.SILENT, (2,), ())], id="mixed versions"),
        pytest.param(
            named((0, 1, 3), dump=old(waiting(nccl))),
            (2,), (2,), [(Fault.SILENT, (2,), ())], id="neither members nor what a group is"),
        pytest.param(
            named(range(7), dump=waiting(nccl, pg_config=EIGHT)),
            (7,), (), [(Fault.SILENT, (7,), ())], id="one at the end, by the members of a group"),
        pytest.param(
            named((0, 1, 3, 4, 5, 6), dump=waiting(nccl, pg_config=EIGHT)),
            (2, 7), (), [(Fault.SILENT, (), ((2,), (7,)))], id="in the middle and at the end"),
        pytest.param(
            named((0, 3, 4)) | {"rank_1": idle()},
            (2,), (2,), [(Fault.NOT_ENTERED, (1,), ())], id="another explains the wait"),
        pytest.param(named((0, 1, 3), dump=idle()), (2,), (2,), [], id="nobody waits"),
        pytest.param(
            named((0, 1), dump=in_tp(waiting(nccl, pg_config=TP)))
            | {"rank_3": idle(nccl, pg_config=config(**{"0": ("default_pg", (3,))}))},
            (2,), (2,), [], id="of another group"),
        pytest.param(
            named((0, 1), dump=in_tp(waiting())) | named((3, 4), dump=idle()),
            (2,), (2,), [(Fault.SILENT, (), ((2,),))], id="perhaps of another group"),
        pytest.param(named((0, 1, 2)), (), (), [], id="nobody is missing"),
        pytest.param(named((12341, 12399, 14000)), (), (), [], id="numbered by pids"),
    ],
)  # fmt: skip
def test_who_left_no_dump(dumps, silent, gaps, findings, tmp_path: Path) -> None:
    records = loaded(tmp_path, dumps)
    assert (records.silent, records.gaps) == (silent, gaps)
    analysis = analyse(records)
    assert [
        (finding.kind, finding.culprits, finding.between) for finding in analysis.findings
    ] == findings
    notes = " ".join(analysis.notes)
    assert all(f"Rank {rank} left no dump" in notes for rank in gaps)
    tied = [finding.reason for finding in analysis.findings if finding.between == ((2,),)]
    assert all("nothing tells whether the others wait for it" in reason for reason in tied)


def test_whoever_is_in_no_quorum_is_not_missing(tmp_path: Path) -> None:
    row = pending(0, 1, process_group=["", ""], pg_id=2)
    folder = tmp_path / "job_quorum_3"
    folder.mkdir()
    for rank in (0, 1, 3):
        (folder / str(rank)).write_bytes(as_pickle({"version": "2.10", "entries": [row]}))
    assert load_job([tmp_path], workers=1).gaps == ()


def test_the_command_says_who_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(tmp_path, named((0, 1, 3)))
    assert main(["analyze", str(tmp_path), "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["culprits"], said["ranks_silent"], said["ranks_expected"]) == ([2], [2], 4)
