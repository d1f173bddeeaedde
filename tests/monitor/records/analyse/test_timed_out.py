"""What looks completed and cannot be: some left it, and a member had never entered it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Analysis, Fault
from tests.monitor.records.answers import answer, call
from tests.monitor.records.dumps import CREATED, as_json, config, entry, gloo, nccl, pending

S = 1_000_000_000
Dump = dict[str, Any]
Make = Callable[..., Dump]


def finished(make: Make = nccl, **how: Any) -> Dump:
    """Three collectives, and nothing since."""
    return make(*(entry(i, i + 1) for i in range(3)), **how)


def left(make: Make = nccl, after_s: float = 30, **how: Any) -> Dump:
    """A fourth that the record calls completed (gloo: retired)."""
    ended = CREATED + 3 + int(after_s * S)
    rows = [*(entry(i, i + 1) for i in range(3)), entry(3, 4, time_discovered_completed_ns=ended)]
    return make(*rows, **how)


def inside(make: Make = nccl, **how: Any) -> Dump:
    return make(*(entry(i, i + 1) for i in range(3)), pending(3, 4), **how)


def analysed(
    folder: Path, dumps: Mapping[int, Dump], taken_s: float | Mapping[int, float] | None = 60
) -> Analysis:
    """The analysis of dumps whose files are dated so long after their first call."""
    for rank, dump in dumps.items():
        path = folder / f"rank_{rank}"
        path.write_bytes(as_json(dump))
        age = taken_s.get(rank) if isinstance(taken_s, Mapping) else taken_s
        if age is not None:
            at = CREATED + int(age * S)
            os.utime(path, ns=(at, at))
    return analyse(load_job([folder], workers=1))


def accused(analysis: Analysis) -> list[tuple[Fault, Confidence, tuple[int, ...], tuple[int, ...]]]:
    return [
        (finding.kind, finding.confidence, finding.culprits, finding.victims)
        for finding in analysis.findings
    ]


NEVER_CAME = [(Fault.NOT_ENTERED, Confidence.LIKELY, (3,), (0, 1, 2))]


TP = ("5", "tp")
GROUPS = config(**{"0": ("default_pg", range(4)), "5": ("tp", (3,))})
LATER = entry(3, 9, process_group=TP, pg_id=5, time_created_ns=CREATED + 29 * S)
WRAPPED = [entry(900 + i, 50 + i, process_group=TP, pg_id=5) for i in range(3)]


def three(leave: Dump, other: Dump) -> dict[int, Dump]:
    return {0: leave, 1: leave, 2: leave, 3: other}


def broadcast(dump: Dump) -> Dump:
    dump["entries"][3]["profiling_name"] = "nccl:broadcast"
    return dump


@pytest.mark.parametrize(
    ("dumps", "taken_s", "findings"),
    [
        *(
            pytest.param(dumps, taken_s, findings, id=f"{name}, {make.__name__}")
            for make in (nccl, gloo)
            for name, dumps, taken_s, findings in (
                ("never entered what all left", three(left(make), finished(make)), 60, NEVER_CAME),
                ("one is inside still",
                 three(left(make), finished(make)) | {2: inside(make)}, 60, NEVER_CAME),
                ("its dump is older than their entry: it may have come later",
                 three(left(make), finished(make)), {0: 60, 1: 60, 2: 60, 3: 1}, []),
            )
        ),
        pytest.param(three(left(after_s=600), finished()), {0: 601, 1: 601, 2: 601, 3: 20}, [],
                     id="its dump is much older than their leaving: it may have come in between"),
        pytest.param(three(left(after_s=0.02), finished()), 60, [],
                     id="copied dumps of a running job"),
        pytest.param(three(left(), finished()), None, [],  # files of today say nothing of 2025
                     id="without any date"),
        pytest.param(
            three(left(), nccl(*finished()["entries"], LATER, pg_config=GROUPS)), None, NEVER_CAME,
            id="its own later calls date a record that nothing else dates"),
        pytest.param(three(left(), nccl(*WRAPPED, pg_config=GROUPS, pg_status={})), 60, [],
                     id="a ring that wrapped past the group says nothing of it"),
        pytest.param({0: broadcast(left())} | dict.fromkeys((1, 2, 3), finished()), 60, [],
                     id="a broadcast is left by its root before a member enters"),
    ],
)  # fmt: skip
def test_who_never_came_is_named_where_the_dates_prove_it(
    dumps: dict[int, Dump],
    taken_s: float | dict[int, float] | None,
    findings: list[Any],
    tmp_path: Path,
) -> None:
    analysis = analysed(tmp_path, dumps, taken_s)
    assert accused(analysis) == findings
    assert all(finding.sequence == 4 for finding in analysis.findings)


def test_who_hangs_in_another_group_is_no_culprit_of_what_its_peers_left(tmp_path: Path) -> None:
    groups = config(**{"0": ("default_pg", range(4)), "5": ("tp", (3, 7))})
    stuck = pending(3, 9, process_group=("5", "tp"), pg_id=5)
    tp = entry(2, 8, process_group=("5", "tp"), pg_id=5)
    dumps = {r: left(pg_config=groups) for r in range(3)}
    dumps[3] = nccl(*(entry(i, i + 1) for i in range(3)), stuck, pg_config=groups)
    dumps[7] = nccl(tp, pg_config=groups)
    dumps |= {r: nccl(pg_config=groups) for r in (4, 5, 6)}
    analysis = analysed(tmp_path, dumps)
    assert analysis.culprits == (7,)
    assert analysis.findings[0].victims == (0, 1, 2, 3)


@pytest.mark.parametrize("error", [None, "Timed out waiting 30000ms for recv operation"])
def test_so_it_is_in_rings_whether_the_program_saw_the_error_or_swallowed_it(
    error: str | None, tmp_path: Path
) -> None:
    torch = gloo(entry(0, 1))
    calls = [call(i, i, enter_age_s=61.0 - i, exit_age_s=60.5 - i) for i in range(1, 4)]
    calls[0]["torch_ids"] = [0]
    last = call(4, 4, enter_age_s=55.0, exit_age_s=25.0, error=error)
    dumps = {
        r: answer(*calls, *([last] if r < 3 else []), rank=r, size=4, torch=torch) for r in range(4)
    }
    assert accused(analysed(tmp_path, dumps)) == NEVER_CAME
