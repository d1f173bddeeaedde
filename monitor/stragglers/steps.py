"""How long a step of the job lasts."""

from __future__ import annotations

import numpy as np

from monitor.cohort import Floats
from monitor.stragglers.table import Table
from monitor.stragglers.work import Work


def step_seconds(table: Table, work: Work) -> Floats:
    """Seconds by step: the median of the ranks' spans, each on its own clock.

    Without start times it is the work of the busiest stage, which a step takes at least.
    """
    least = np.max(np.concatenate([crew.seconds for crew in work.crews], axis=1), axis=1)
    if table.start_s is None:
        return np.asarray(least, dtype=np.float64)
    steps = len(table.steps)
    cells = len(table.ranks) * steps
    key = table.rank.astype(np.int64) * steps + table.step
    begin = np.full(cells, np.inf)
    end = np.full(cells, -np.inf)
    np.minimum.at(begin, key, table.start_s)
    np.maximum.at(end, key, table.start_s + table.duration_s)
    spans = (end - begin).reshape(len(table.ranks), steps)
    spans[~np.isfinite(spans)] = np.nan
    middles = np.array([np.median(one[~np.isnan(one)]) for one in spans.T])
    return np.asarray(np.maximum(middles, least), dtype=np.float64)
