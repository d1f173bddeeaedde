"""What looks completed and cannot be: some left it, and a member had never entered it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.model.verdict import Confidence
from monitor.records.analyse import analyse
from monitor.records.files import load
from monitor.records.findings import Analysis, Fault
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
    return analyse(load([folder], workers=1))


def accused(found: Analysis) -> list[tuple[Fault, Confidence, tuple[int, ...], tuple[int, ...]]]:
    return [(one.kind, one.confidence, one.culprits, one.victims) for one in found.findings]


NEVER_CAME = [(Fault.NOT_ENTERED, Confidence.LIKELY, (3,), (0, 1, 2))]


@pytest.mark.parametrize("make", [nccl, gloo])
def test_who_never_entered_what_its_peers_left_is_named(make: Make, tmp_path: Path) -> None:
    dumps = {r: left(make) for r in range(3)} | {3: finished(make)}
    found = analysed(tmp_path, dumps)
    assert accused(found) == NEVER_CAME
    assert found.findings[0].sequence == 4


@pytest.mark.parametrize("make", [nccl, gloo])
def test_where_some_left_and_one_is_inside_still_both_wait_for_who_never_came(
    make: Make, tmp_path: Path
) -> None:
    dumps = {0: left(make), 1: left(make), 2: inside(make), 3: finished(make)}
    assert accused(analysed(tmp_path, dumps)) == NEVER_CAME


@pytest.mark.parametrize("make", [nccl, gloo])
def test_whose_dump_is_older_than_its_peers_entry_may_have_come_later(
    make: Make, tmp_path: Path
) -> None:
    dumps = {r: left(make) for r in range(3)} | {3: finished(make)}
    found = analysed(tmp_path, dumps, {0: 60, 1: 60, 2: 60, 3: 1})
    assert not found.findings


def test_whose_dump_is_much_older_than_its_peers_leaving_may_have_come_in_between(
    tmp_path: Path,
) -> None:
    dumps = {r: left(after_s=600) for r in range(3)} | {3: finished()}
    found = analysed(tmp_path, dumps, {0: 601, 1: 601, 2: 601, 3: 20})
    assert not found.findings


def test_copied_dumps_of_a_running_job_accuse_nobody(tmp_path: Path) -> None:
    dumps = {r: left(after_s=0.02) for r in range(3)} | {3: finished()}
    assert not analysed(tmp_path, dumps).findings


def test_without_any_date_nobody_is_accused(tmp_path: Path) -> None:
    dumps = {r: left() for r in range(3)} | {3: finished()}
    assert not analysed(tmp_path, dumps, None).findings  # files of today say nothing of 2025


def test_its_own_later_calls_date_a_record_that_nothing_else_dates(tmp_path: Path) -> None:
    later = entry(3, 9, process_group=("5", "tp"), pg_id=5, time_created_ns=CREATED + 29 * S)
    groups = config(**{"0": ("default_pg", range(4)), "5": ("tp", (3,))})
    busy = nccl(*(entry(i, i + 1) for i in range(3)), later, pg_config=groups)
    dumps = {r: left() for r in range(3)} | {3: busy}
    assert accused(analysed(tmp_path, dumps, None)) == NEVER_CAME


def test_a_ring_that_wrapped_past_the_group_says_nothing_of_it(tmp_path: Path) -> None:
    groups = config(**{"0": ("default_pg", range(4)), "5": ("tp", (3,))})
    rows = [entry(900 + i, 50 + i, process_group=("5", "tp"), pg_id=5) for i in range(3)]
    wrapped = nccl(*rows, pg_config=groups, pg_status={})
    dumps = {r: left() for r in range(3)} | {3: wrapped}
    assert not analysed(tmp_path, dumps).culprits


def test_who_hangs_in_another_group_is_no_culprit_of_what_its_peers_left(tmp_path: Path) -> None:
    groups = config(**{"0": ("default_pg", range(4)), "5": ("tp", (3, 7))})
    stuck = pending(3, 9, process_group=("5", "tp"), pg_id=5)
    tp = entry(2, 8, process_group=("5", "tp"), pg_id=5)
    dumps = {r: left(pg_config=groups) for r in range(3)}
    dumps[3] = nccl(*(entry(i, i + 1) for i in range(3)), stuck, pg_config=groups)
    dumps[7] = nccl(tp, pg_config=groups)
    dumps |= {r: nccl(pg_config=groups) for r in (4, 5, 6)}
    found = analysed(tmp_path, dumps)
    assert found.culprits == (7,)
    assert found.findings[0].victims == (0, 1, 2, 3)


def test_a_broadcast_is_left_by_its_root_before_a_member_enters(tmp_path: Path) -> None:
    def sent(dump: Dump) -> Dump:
        dump["entries"][3]["profiling_name"] = "nccl:broadcast"
        return dump

    dumps = {0: sent(left()), 1: finished(), 2: finished(), 3: finished()}
    assert not analysed(tmp_path, dumps).findings


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
