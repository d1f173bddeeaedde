"""What must survive the monitor: incidents, decisions, evictions, the quarantine, targets, notices.

Belongs here: what is remembered (`rows`: pure), the SQLite file (`file`), and who writes it without
ever holding up a tick (`store`). Not here: what is shown (`chronicle`), and every tick (`journal`).
"""

from monitor.store.file import StoreError
from monitor.store.rows import (
    KEEPER,
    Change,
    DecisionRow,
    QuarantineEntry,
    QuarantineEvent,
    Remembered,
    Scope,
    eviction_from_json,
    eviction_to_json,
)
from monitor.store.store import Store

__all__ = [
    "KEEPER",
    "Change",
    "DecisionRow",
    "QuarantineEntry",
    "QuarantineEvent",
    "Remembered",
    "Scope",
    "Store",
    "StoreError",
    "eviction_from_json",
    "eviction_to_json",
]
