"""Evidence: what ranks say while they are still there, kept in one zip for each incident.

Belongs here: whom to ask, the capture, the zip, the folder with its retention. Does not belong
here: whether to evict (policy), reading bundles (`monitor.dumps`), serving them (app). Theory of
operation: an incident that begins to fire, and an eviction whose evidence is older than a few
seconds, start a *moment*: everybody concerned is asked for everything at once, until one deadline
for the whole. What has come by then goes into the incident's zip beside its earlier moments; what
has not is named in the manifest. The tick only hands over what it saw. The evictor waits until the
answers are in the monitor's memory, never for the disk, and never longer than the deadline.
"""

from monitor.evidence.capture import Evidence
from monitor.evidence.lanes import Ticket
from monitor.evidence.shelf import Keep, Shelf, keep_of

__all__ = ["Evidence", "Keep", "Shelf", "Ticket", "keep_of"]
