"""What must survive the monitor: incidents, decisions, evictions, the quarantine, targets, notices.

Belongs here: what is remembered (`rows`, `reading`: pure), where (`place`), the tables and how they
came about (`tables`, `migrate`), the database (`database`), and who writes it without ever holding
up a tick (`store`). Not here: who may write (`lease`), what is shown (`chronicle`), and every tick
(`journal`). SQLAlchemy is imported by `tables`, `migrate` and `database` alone.
"""

from monitor.store.place import Place, StoreError, parse_place
from monitor.store.rows import (
    KEEPER,
    Change,
    DecisionRow,
    DecisionState,
    Fence,
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
    "DecisionState",
    "Fence",
    "Place",
    "QuarantineEntry",
    "QuarantineEvent",
    "Remembered",
    "Scope",
    "Store",
    "StoreError",
    "eviction_from_json",
    "eviction_to_json",
    "parse_place",
]
