"""The tables, schema 2.

Decisions have a state, an author, an epoch and what came of them; `lease` says which monitor acts.
A decision and its eviction share their key: incident and time.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, Double, Integer, MetaData, Table, Text

SCHEMA: Final = 2

METADATA: Final = MetaData()


def _bodies(name: str, *keys: str) -> Table:
    """JSON under these keys: seconds, or text."""
    columns = [Column[Any](k, Double if k.endswith("_s") else Text, primary_key=True) for k in keys]
    return Table(name, METADATA, *columns, Column("body", Text, nullable=False))


EVICTIONS: Final = _bodies("evictions", "incident_id", "asked_s")
_bodies("quarantine_entries", "scope", "name")
_bodies("targets", "rank")
_bodies("notices", "sink", "key")
_bodies("audit", "incident_id", "part")
_bodies("switches", "name")

INCIDENTS: Final = Table(
    "incidents",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("first_seen_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
TRANSITIONS: Final = Table(
    "transitions",
    METADATA,
    Column("incident_id", Text, primary_key=True),
    Column("at_s", Double, primary_key=True),
    Column("to_state", Text, primary_key=True),
    Column("reason", Text, nullable=False),
)
DECISIONS: Final = Table(
    "decisions",
    METADATA,
    Column("incident_id", Text, primary_key=True),
    Column("at_s", Double, primary_key=True),
    Column("action", Text, primary_key=True),
    Column("guard", Text),
    Column("reason", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text),
    Column("author", Text),
    Column("epoch", Integer),
    Column("attempt", Integer),
    Column("ended_s", Double),
    Column("outcome", Text),
)
QUARANTINE_EVENTS: Final = Table(
    "quarantine_events",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
LEASE: Final = Table(
    "lease",
    METADATA,
    Column("scope", Text, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("beat", Integer, nullable=False),
    Column("writes", Integer, nullable=False),
    Column("holder", Text),
    Column("url", Text),
    Column("since_s", Double),
    Column("ttl_s", Double, nullable=False),
)
VERSION: Final = Table("lightkeeper_schema", METADATA, Column("version", Integer, primary_key=True))
"""One row, in PostgreSQL; SQLite has a place for it in the file (`user_version`)."""
