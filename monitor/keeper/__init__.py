"""The loop that observes, decides and acts, once per tick.

Belongs here: the loop (`keeper`), what it drives (`parts`), the look at the fleet (`observing`),
what becomes of a decision (`acting`), its order (`orders`: pure), every decision from its writing
to its end (`docket`, `unfinished`: pure), who acts (`handover`), and what it says of its own state
(`troubles`, `bulkheads`). Not here: how any part works, how parts are made (`service`), and the
lease (`lease`).
"""

from monitor.keeper.keeper import Keeper
from monitor.keeper.parts import Deeds, Parts

__all__ = ["Deeds", "Keeper", "Parts"]
