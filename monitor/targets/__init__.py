"""Who is polled: ranks that registered with a lease, and those of a `file_sd` list.

Belongs here: a target and how the store writes it (`target`), the registry of them (`registry`),
the list of those that do not register (`file_sd`). Not here: polling (`poller`), and what silence
means (detectors).
"""

from monitor.targets.file_sd import TargetsError, TargetsFile
from monitor.targets.registry import Registry
from monitor.targets.target import Source, Standing, Target

__all__ = ["Registry", "Source", "Standing", "Target", "TargetsError", "TargetsFile"]
