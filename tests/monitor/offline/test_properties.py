"""What must not matter does not: the order of rows, and the numbers of ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.offline.slow import judge
from lightkeeper.monitor.offline.timings import build_table
from tests.changed import replace
from tests.monitor.offline.jobs import OPS, Recorded, Slow, SlowLink

BASE = Recorded(dp=4, pp=2, microbatches=4, steps=12)
JOBS = (
    BASE,
    replace(BASE, slow=(Slow(1, 2, 1.4),)),
    replace(BASE, slow=(Slow(0, 0, 2.0), Slow(0, 1, 2.0))),
    replace(BASE, links=(SlowLink(0, 3, 0.5),)),
    replace(BASE, dp=2, slow=(Slow(0, 1, 2.0),)),
    replace(BASE, long_sequences=0.6, slow=(Slow(0, 1, 2.0),)),
)
COLUMNS = [job.columns() for job in JOBS]
REPORTS = [judge(build_table(columns, OPS)) for columns in COLUMNS]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, len(JOBS) - 1), st.integers(0, 2**32 - 1))
def test_the_order_of_rows_changes_nothing(case, seed) -> None:
    order = np.random.default_rng(seed).permutation(len(COLUMNS[case]["rank"]))
    columns = {name: held[order] for name, held in COLUMNS[case].items()}
    assert judge(build_table(columns, OPS)) == REPORTS[case]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, len(JOBS) - 1), st.integers(0, 2**32 - 1))
def test_other_numbers_of_ranks_change_only_names(case, seed) -> None:
    columns = COLUMNS[case]
    old = np.unique(columns["rank"])
    new = np.random.default_rng(seed).choice(10_000, len(old), replace=False)
    renamed = {**columns, "rank": new[np.searchsorted(old, columns["rank"])]}
    table = build_table(renamed, OPS)
    report, before = judge(table), REPORTS[case]
    names = dict(zip(old.tolist(), new.tolist(), strict=True))
    was = build_table(columns, OPS)
    expected = sorted(names[rank] for rank in was.ranks[list(before.culprits)].tolist())
    assert sorted(table.ranks[list(report.culprits)].tolist()) == expected
    assert sorted(
        (verdict.kind, verdict.ratio, verdict.lost_s) for verdict in report.verdicts
    ) == sorted((verdict.kind, verdict.ratio, verdict.lost_s) for verdict in before.verdicts)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, len(JOBS) - 1), st.integers(0, 2**32 - 1), st.floats(0.0, 0.9))
def test_leaving_rows_out_never_names_a_healthy_rank(case, seed, share) -> None:
    kept = np.random.default_rng(seed).random(len(COLUMNS[case]["rank"])) >= share
    if not kept.any():
        return
    table = build_table({name: held[kept] for name, held in COLUMNS[case].items()}, OPS)
    blamed = set(table.ranks[list(judge(table).culprits)].tolist())
    assert blamed <= set(JOBS[case].culprits)
