"""How incidents move over ticks: what opens one, fires it, ends it, and what comes after.

Belongs here: the state machine with its memory (`tracker`), and the rules that it applies, each a
function of the history and one incident (`sighting`, `evicting`, `ending`, `aftermath`, `story`).
Not here: what an incident is (`incident`), who is to blame (`detectors`), what is done (`policy`).
"""

from monitor.tracker.ending import GONE_UNCONFIRMED_S
from monitor.tracker.tracker import Tracker

__all__ = ["GONE_UNCONFIRMED_S", "Tracker"]
