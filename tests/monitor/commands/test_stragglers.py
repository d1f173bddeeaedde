"""`lightkeeper stragglers` as a user meets it, on made-up jobs and on the recorded ones."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands import stragglers
from tests.changed import replace
from tests.monitor.commands.calling import Command
from tests.monitor.offline.jobs import OPS, Recorded, Slow, write_csv, write_parquet
from tests.monitor.process import ROOT

RECORDED = [
    ROOT.parent / "shared/data/straggler_traces",
    Path("/work/shared/data/straggler_traces"),
]
REAL = next((path for path in RECORDED if path.is_dir()), None)

SOUND = Recorded(dp=4, pp=2, microbatches=4, steps=12)
SICK = replace(SOUND, tp=2, slow=(Slow(1, 2, 1.5),))


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which global rank 12 is slow."""
    return write_parquet(tmp_path_factory.mktemp("tables") / "sick.parquet", SICK.columns())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("tables") / "sound.parquet", SOUND.columns())


# -- the recorded jobs ----------------------------------------------------------------------------


@pytest.mark.skipif(REAL is None, reason="needs ../shared/data/straggler_traces")
@pytest.mark.parametrize(
    ("job", "culprits", "status"), [("AR", [0], 1), ("ST", [], 0)], ids=["AR", "ST"]
)
def test_of_the_recorded_jobs_exactly_the_slow_rank_is_named(
    job: str, culprits: list[int], status: int, command: Command
) -> None:
    assert REAL is not None
    report = command.json("stragglers", str(REAL / f"trace-{job}.parquet"), status=status)
    assert report["schema"] == 1
    assert report["culprits"] == culprits
    assert [row["culprits"] for row in report["verdicts"]] == [culprits] * len(culprits)
    for verdict in report["verdicts"]:
        assert verdict["ratio"] == pytest.approx(2.3, abs=0.1)
        assert verdict["steps"] == {"slow": 44, "seen": 44, "of": 44}


# -- the answer -----------------------------------------------------------------------------------


def test_a_fault_is_status_1_and_named_first(sick: Path, command: Command) -> None:
    said = command("stragglers", str(sick), status=1)
    assert said.startswith("1 fault found, caused by rank 12\n")
    assert re.search(r"│ 12 +│ 1 +│ 2 +(│ 1\.[45]\d +){3}│ 12 of 12 +│", said)


def test_no_fault_is_status_0(sound: Path, command: Command) -> None:
    assert command("stragglers", str(sound)).startswith("no straggler found\n")


def test_a_verdict_has_all_that_a_program_needs(sick: Path, command: Command) -> None:
    report = command.json("stragglers", str(sick), status=1)
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["class"], verdict["confidence"]) == (
        "straggler",
        "S1",
        "likely",
    )
    assert (verdict["group"], verdict["stage"], verdict["dp_rank"]) == ("stage 1", 1, 2)
    assert verdict["culprits"] == report["culprits"] == [12]
    assert (verdict["since_step"], verdict["until_step"]) == (10, 43)
    assert verdict["reason"].startswith("Rank 12 (stage 1, data-parallel rank 2) takes 1.5")
    assert {"source", "resolution"} <= set(verdict["evidence"])
    assert report["table"]["ranks"] == len(report["ranks"]) == 8


def test_parquet_and_csv_give_the_same(sick: Path, tmp_path: Path, command: Command) -> None:
    csv = write_csv(tmp_path / "sick.csv", SICK.columns())
    report = command.json("stragglers", str(sick), status=1)
    assert command.json("stragglers", str(csv), status=1) == report


def test_text_columns_and_missing_values_of_parquet_are_read(
    tmp_path: Path, command: Command
) -> None:
    import pyarrow
    import pyarrow.parquet

    held = {name: values.tolist() for name, values in SICK.columns().items()}
    held["optype"] = [OPS[code] for code in held["optype"]]
    for name in ("rank", "optype", "duration", "mb_id"):
        held[name][::9] = [None] * len(held[name][::9])
    held["step"] = [float(step) for step in held["step"]]  # as pandas has whole numbers with gaps
    pyarrow.parquet.write_table(pyarrow.table(held), tmp_path / "t.parquet")
    report = command.json("stragglers", str(tmp_path / "t.parquet"), status=1)
    assert report["culprits"] == [12]
    assert re.match(r"\d+ of 1,\d+ rows left out", report["notes"][0])


# -- unusable input: one line, status 2 -----------------------------------------------------------


def _bad_input(folder: Path) -> None:
    columns = SOUND.columns()
    write_parquet(folder / "good.parquet", columns)
    write_parquet(folder / "none.parquet", {name: held[:0] for name, held in columns.items()})
    without = {name: held for name, held in columns.items() if name not in {"duration", "stage"}}
    write_parquet(folder / "lacks.parquet", without)
    named = {**columns, "rank": np.array(["a"] * len(columns["rank"]))}
    write_parquet(folder / "named.parquet", named)
    (folder / "cut.parquet").write_bytes((folder / "good.parquet").read_bytes()[:5000])
    (folder / "empty.csv").write_text("")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    (folder / "head.csv").write_text("rank,stage,step,optype,duration\n")
    (folder / "words.csv").write_text("rank,stage,step,optype,duration\n" + "x,y,z,gc,w\n" * 3)
    (folder / "short.csv").write_text("rank,stage,step,optype,duration\n0,0,0,gc\n")
    (folder / "noise.csv").write_bytes(bytes(range(256)) * 40)
    rows = "".join(f"{n},0,{n},forward-compute,0.1\n" for n in range(3000))
    (folder / "sparse.csv").write_text("rank,stage,step,optype,duration\n" + rows)
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere: No such file"),
        (["no\nwhere\x1b[2J"], "no where[2J: No such file"),
        (["."], "no regular file"),
        (["pipe"], "no regular file"),
        (["empty.csv"], "empty.csv: not readable as CSV: Empty CSV file"),
        (["other.csv"], "no column rank and no column stage and "),
        (["head.csv"], "column optype holds null, expected names"),
        (["words.csv"], "column rank holds string, expected numbers"),
        (["short.csv"], "Expected 5 columns, got 4: 0,0,0,gc"),
        (["noise.csv"], "noise.csv: "),
        (["sparse.csv"], "3,000 rows are too few for 3,000 ranks in 3,000 steps"),
        (["none.parquet"], "the table has no rows"),
        (["lacks.parquet"], "no column stage and no column duration; there are "),
        (["named.parquet"], "column rank holds string, expected numbers"),
        (["cut.parquet"], "not readable as parquet: "),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_one_line_and_status_2(
    words: list[str], line: str, bad: Path, command: Command
) -> None:
    assert line in command.refused("stragglers", *(str(bad / word) for word in words))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    _bad_input(folder)
    return folder


# -- as a process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [(), ("--format", "json")])
def test_what_takes_too_long_is_ended_and_nobody_is_accused(
    how: tuple[str, ...], sick: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(stragglers, "judge", lambda _: threading.Event().wait(60))
    assert main(["stragglers", str(sick), "--deadline", "0.5", *how]) == 3
    said = capsys.readouterr()
    if how:
        assert json.loads(said.out)["culprits"] == []
    assert "not done after 0.5 s" in said.out + said.err


def test_without_pyarrow_it_says_what_to_install(
    sick: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = command.refused("stragglers", str(sick))
    assert "needs pyarrow: pip install 'lightkeeper[analyze]'" in said
