"""Which option of `KeeperConfig` stands in which table of a policy file, and what it may be."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from monitor.config import ConfigError, KeeperConfig

GUARDS: Final = (
    "min_replicas", "budget_per_hour", "budget_per_group", "cool_down_s", "breaker_share",
    "eviction_cost_s", "program_bug_after", "crash_loop_after", "crash_loop_memory_s",
    "lateness_ticks", "unreachable_share", "starved_share",
)  # fmt: skip
"""Table `guards`: when an eviction is held back."""
MODE: Final = "observe"
"""Told by `mode` in table `policy`."""
THRESHOLDS: Final = tuple(
    one.name for one in fields(KeeperConfig) if one.name not in (*GUARDS, MODE)
)
"""Table `thresholds`: everything else, mostly when a fault is one."""
_DEFAULTS: Final = KeeperConfig()
_AT_START: Final = frozenset({
    "tick_s", "quarantine_again_factor", "readmission_hours",
    "job_timeout_s", "straggler_horizon_s",
})  # fmt: skip


def needs_restart(name: str) -> bool:
    """Whether an option is looked at only when the monitor starts: its clock, its evidence, its
    messages, its record of hosts, its accounts. Everything else changes with a reload.
    """
    return name in _AT_START or name.startswith(("evidence_", "notify_", "lemon_"))


def problem_of(name: str, value: Any) -> str | None:
    """Why a value is none for this option; None when it is."""
    default = getattr(_DEFAULTS, name)
    whole = isinstance(default, int)
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits:
        return f"is {value!r}, expected a {'whole ' if whole else ''}number such as {default!r}"
    try:
        KeeperConfig.check(name, value)
    except ConfigError as exc:
        return str(exc).removeprefix(f"{name} ")
    return None


def suggestion(name: str, known: tuple[str, ...]) -> str:
    """What was meant by an unknown key, as far as one can tell."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    listed = ", ".join(known) if len(known) <= 12 else "a name that `lightkeeper policy show` lists"
    return f"expected {listed}"
