"""What one policy says other than another: for the audit log. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from monitor.config import KeeperConfig
from monitor.policy.effective import Effective
from monitor.policy.reading import policy_to_json


def changes(before: Effective, after: Effective) -> dict[str, list[Any]]:
    """Key -> what it was and what it is; what waits for a restart is told as the file says it."""
    old, new = _flat(before), _flat(after)
    return {
        key: [old.get(key), new.get(key)]
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def _flat(held: Effective) -> dict[str, Any]:
    rules = policy_to_json(held.policy)
    found: dict[str, Any] = {
        f"actions.{kind}.{severity}": action
        for kind, row in rules["actions"].items()
        for severity, action in row.items()
    }
    for number, window in enumerate(rules["maintenance"], 1):
        found[f"maintenance.{window.get('name') or number}"] = window
    for one in fields(KeeperConfig):
        found[one.name] = getattr(held.config, one.name)
        if one.name in held.waiting:
            found[f"{one.name} (after a restart)"] = held.waiting[one.name]
    return found
