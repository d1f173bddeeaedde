"""The loop that observes, decides and acts, once per tick.

Belongs here: the loop (`keeper`), what it drives (`parts`), the orders that decisions become
(`orders`: pure), and what it says of its own state (`troubles`). Not here: how any part works, and
how parts are made (`service`).
"""

from monitor.keeper.keeper import Keeper
from monitor.keeper.parts import Judge, Parts

__all__ = ["Judge", "Keeper", "Parts"]
