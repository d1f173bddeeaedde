"""Any table is judged or refused in one line; nothing else is raised."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.offline.slow import judge
from lightkeeper.monitor.offline.timings import TableError, build_table, load_table
from tests.monitor.offline.jobs import OPS

few = st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 7, 2**31 - 1])
spans = st.one_of(st.sampled_from([0.0, 0.1, 0.1, 0.2, 5.0, 1e-300, 1e300]), st.floats())
rows = st.lists(
    st.tuples(few, few, few, st.integers(-1, len(OPS) - 1), spans, few, spans, few, few, few),
    min_size=1,
    max_size=60,
)
NAMES = (
    "rank", "stage", "step", "optype", "duration", "dp_rank", "start_ts", "seq_id", "mc", "mb_id",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows, st.tuples(*[st.booleans()] * 5))
def test_any_rows(drawn, kept) -> None:
    held = {
        name: np.array([row[place] for row in drawn], dtype=float if name in FLOATS else np.int64)
        for place, name in enumerate(NAMES)
        if place < 5 or kept[place - 5]
    }
    with contextlib.suppress(TableError):
        judge(build_table(held, OPS))


FLOATS = ("duration", "start_ts")
HEAD = b"rank,stage,step,optype,duration\n"


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", b"PAR1", HEAD]))
def test_any_bytes(tmp_path_factory, tail, head) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "any"
    path.write_bytes(head + tail)
    with contextlib.suppress(TableError):
        judge(load_table(path))
