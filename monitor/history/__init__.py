"""What was seen over time: all that a detector may ask about the past.

Belongs here: one track a rank (`track`), the whole with its questions (`history`), and how a tick's
snapshot gets in (`intake`, with what pauses teach in `lessons` and who came to the quorums in
`turnout`). Not here: books that know no ranks' tracks (`pace`, `habits`, `arrivals`, `prints` ...),
nor any judgement (`detectors`).
"""

from monitor.history.history import Absence, History, Reading
from monitor.history.intake import push
from monitor.history.track import (
    FINISHED_PHASE,
    INSIDE,
    OUTSIDE,
    RUNNING,
    UNDECLARED,
    RankTrack,
    inside_own_group,
)

__all__ = [
    "FINISHED_PHASE",
    "INSIDE",
    "OUTSIDE",
    "RUNNING",
    "UNDECLARED",
    "Absence",
    "History",
    "RankTrack",
    "Reading",
    "inside_own_group",
    "push",
]
