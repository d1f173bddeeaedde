"""Which series a panel means: label matchers over the dashboard's variables."""

from __future__ import annotations

from typing import Final

MONITOR: Final = 'instance=~"$monitor"'
"""Of the metrics that a monitor exports."""
GROUP: Final = MONITOR + ', replica_group=~"$replica_group"'
"""Of those that it exports for each group or rank."""
RANK: Final = 'job_id=~"$job_id", replica_group=~"$replica_group"'
"""Of the metrics that a rank exports itself."""
BUSY: Final = f"lightkeeper_rank_busy_seconds{{{GROUP}}}"
