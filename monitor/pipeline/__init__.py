"""One tick of deciding, from a snapshot to decisions.

Belongs here: the order of the tick and its memory (`pipeline`), every detector there is (`roster`),
the fleet as policy sees it (`fleet`), and what a tick hands on (`result`, `rank_health`). Not here:
any rule of the detectors, the tracker or policy. Who observes and acts imports this package alone.
"""

from monitor.pipeline.pipeline import Pipeline
from monitor.pipeline.rank_health import WORST_FIRST, RankHealth
from monitor.pipeline.result import Learned, TickResult
from monitor.pipeline.roster import DETECTORS, Detector

__all__ = [
    "DETECTORS",
    "WORST_FIRST",
    "Detector",
    "Learned",
    "Pipeline",
    "RankHealth",
    "TickResult",
]
