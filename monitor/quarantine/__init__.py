"""The deny list that the Lighthouse lacks: hosts and groups that may not come back, and why.

A launcher asks `admission` before it (re)starts a group; the first rung of an eviction adds the
culprit's host before the group is gone, so that the launcher is refused in time.

Belongs here: the list (`quarantine`), the answer to a launcher (`admission`: pure), what incidents
say about hosts (`offences`: pure), and what a host's history says about it (`record`: pure). Not
here: who is evicted (policy), and who makes gates and schedulers follow the list.
"""

from monitor.quarantine.admission import Admission
from monitor.quarantine.desk import QuarantineKeeper
from monitor.quarantine.quarantine import Quarantine
from monitor.quarantine.record import HostRecord

__all__ = ["Admission", "HostRecord", "Quarantine", "QuarantineKeeper"]
