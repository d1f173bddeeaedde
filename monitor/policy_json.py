"""The policy that holds as JSON, for the API, the page and the command line. Pure."""

from __future__ import annotations

from typing import Any

from monitor.config import KeeperConfig
from monitor.pipeline import Learned
from monitor.policy.effective import Effective
from monitor.policy.options import GUARDS, THRESHOLDS, needs_restart
from monitor.policy.reading import policy_to_json


def effective_to_json(held: Effective, now_s: float) -> dict[str, Any]:
    """Rules, options with who said them, and what waits for a restart."""
    window = held.policy.window(now_s)
    rules = policy_to_json(held.policy)
    return {
        "source": None if held.path is None else str(held.path),
        "loaded_s": held.loaded_s or None,
        "loads": held.number,
        "mode": "observe" if held.config.observe else "act",
        "actions": rules["actions"],
        "guards": {name: _option(held, name) for name in GUARDS},
        "thresholds": {name: _option(held, name) for name in THRESHOLDS},
        "maintenance": rules["maintenance"],
        "maintenance_now": None
        if window is None
        else {"name": window[0].name, "until_s": window[1]},
        "after_restart": dict(held.waiting),
    }


def learned_to_json(config: KeeperConfig, learned: Learned) -> dict[str, Any]:
    """What decisions rest on beyond the file."""
    told = learned.min_replicas
    measured_s = learned.eviction_cost_s
    return {
        "min_replicas": {
            "configured": config.min_replicas,
            "lighthouse": told,
            "in_force": max(config.min_replicas, told or 0),
        },
        "eviction_cost_s": {
            "configured": config.eviction_cost_s,
            "measured": None if measured_s is None else round(measured_s, 3),
            "evictions": learned.cost_evictions,
            "in_force": config.eviction_cost_s if measured_s is None else round(measured_s, 3),
        },
        "evictions_last_hour": {str(group): n for group, n in sorted(learned.evictions.items())},
    }


def _option(held: Effective, name: str) -> dict[str, Any]:
    return {
        "value": getattr(held.config, name),
        "from": held.said.get(name, "default"),
        "change": "restart" if needs_restart(name) else "reload",
    }
