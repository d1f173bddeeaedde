"""The operator's rules as values: what may be done about each kind of fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from lightkeeper.monitor.decide.links import LINKS_MOST, link_problem
from lightkeeper.monitor.model.config import ConfigError, KeeperConfig
from lightkeeper.monitor.model.queries import QUERIES_MOST, PrometheusQuery, query_from
from lightkeeper.monitor.model.verdict import FAULTS, OF_LIGHTHOUSE, Kind, Severity


def utc_moment(at_s: float) -> str:
    """A Unix time for people and for the policy file."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- rules -------------------------------------------------------------------------------------


class PolicyAction(StrEnum):
    """What may be done about an incident, from the least to the most."""

    OBSERVE = "observe"  # record what would have been done
    PAGE = "page"  # notify a person; never evict
    EVICT = "evict"  # evict the group; its hosts stay open
    EVICT_AND_QUARANTINE = "evict_and_quarantine"  # and quarantine the hosts to blame


_USUAL: Final[Mapping[Kind, PolicyAction]] = {
    Kind.DEAD: PolicyAction.EVICT_AND_QUARANTINE,
    Kind.NOT_ENTERED: PolicyAction.EVICT_AND_QUARANTINE,
    Kind.MISMATCH: PolicyAction.EVICT,  # the program's fault: any other host would repeat it
    Kind.DEADLOCK: PolicyAction.EVICT,  # the same
    Kind.STRAGGLER: PolicyAction.EVICT_AND_QUARANTINE,
    Kind.REPLICA_LAG: PolicyAction.EVICT,
    Kind.STATE_CORRUPT: PolicyAction.EVICT_AND_QUARANTINE,
}
"""Kinds that evict unless the operator says otherwise; all others page."""
_GRACE_S: Final = {Kind.STRAGGLER: 5.0, Kind.STATE_CORRUPT: 5.0, Kind.REPLICA_LAG: 5.0}
"""Ranks that train can hear SIGTERM; those that stand hold up all others."""
_GRACE_MOST_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants, beside the thresholds and guards of `KeeperConfig`."""

    actions: Mapping[tuple[Kind, Severity], PolicyAction] = field(
        default_factory=lambda: {
            (k, s): _USUAL.get(k, PolicyAction.PAGE) for k in FAULTS for s in Severity
        }
    )
    """One for every kind and severity."""
    grace_s: Mapping[Kind, float] = field(
        default_factory=lambda: {kind: _GRACE_S.get(kind, 1.0) for kind in FAULTS}
    )
    """Between SIGTERM and SIGKILL of an eviction, for every kind."""
    queries: tuple[PrometheusQuery, ...] = ()
    """Asked of Prometheus, besides the shipped ones or in place of those with the same code."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name -> template (`decide/links.py`), as they are shown."""

    def action(self, kind: Kind, severity: Severity) -> PolicyAction:
        return self.actions[kind, severity]


DEFAULT: Final = Policy()
"""The policy when no file is given."""


# -- options -----------------------------------------------------------------------------------

GUARDS: Final = (
    "min_replicas", "budget_per_hour", "budget_per_group", "cool_down_s", "breaker_share",
    "eviction_cost_s", "program_bug_after", "crash_loop_after", "crash_loop_memory_s",
    "lateness_ticks", "unreachable_share", "starved_share", "tie_break_s", "release_survivors",
    "gentle_end_s",
)  # fmt: skip
"""Table `guards`: when an eviction is held back."""
MODE: Final = "observe"
"""Set by `mode` in table `policy`."""
THRESHOLDS: Final = tuple(
    option.name for option in fields(KeeperConfig) if option.name not in (*GUARDS, MODE)
)
"""Table `thresholds`: all other options, mostly when something counts as a fault."""
_DEFAULTS: Final = KeeperConfig()
_AT_START: Final = frozenset({"tick_s", "quarantine_again_factor", "readmission_hours"})


def needs_restart(name: str) -> bool:
    """True if an option is read only when the monitor starts: those of its clock, evidence,
    messages and record of hosts. All others change with a reload.
    """
    return name in _AT_START or name.startswith(("evidence_", "notify_", "lemon_"))


def problem_of(name: str, value: Any) -> str | None:
    """Why this option cannot have this value; None if it can."""
    default = getattr(_DEFAULTS, name)
    whole = isinstance(default, int)
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits:
        return f"is {value!r}, expected a {'whole ' if whole else ''}number such as {default!r}"
    return KeeperConfig.problem_with(name, value)


def suggestion(name: str, names: tuple[str, ...]) -> str:
    """The key that was probably meant by an unknown one."""
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    listed = ", ".join(names) if len(names) <= 16 else "a name that `lightkeeper policy show` lists"
    return f"expected {listed}"


# -- reading -----------------------------------------------------------------------------------
# A policy from a parsed file, and back. Pure: `monitor.rulebook` reads the file.
#
# All problems are reported at once, one a line: where, what it is, what was expected.

_TABLES: Final = ("policy", "actions", "grace", "guards", "thresholds", "prometheus", "links")
_OPTIONS: Final = {"guards": GUARDS, "thresholds": THRESHOLDS}
_MODES: Final = ("act", "observe")


class PolicyError(ValueError):
    """A policy that cannot be used; `problems` has one line for each problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """What a file says; what it does not mention keeps its default."""

    policy: Policy = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `KeeperConfig`, by name."""


def policy_from(data: Mapping[str, Any]) -> PolicyFile:
    """The policy of a parsed file.

    Raises:
        PolicyError: every problem with it.
    """
    problems = [
        f"{key}: unknown table, {suggestion(key, _TABLES)}" for key in data if key not in _TABLES
    ]
    options = {
        **_mode(_table(data, "policy", problems), problems),
        **_options(data, "guards", problems),
        **_options(data, "thresholds", problems),
    }
    actions = {**DEFAULT.actions, **_actions(_table(data, "actions", problems), problems)}
    grace_s = {**DEFAULT.grace_s, **_grace(_table(data, "grace", problems), problems)}
    queries = _queries(data.get("prometheus", []), problems)
    links = _links(_table(data, "links", problems), problems)
    if not problems:
        try:
            KeeperConfig.from_options(options)
        except ConfigError as exc:  # two options that do not go together
            problems.append(str(exc))
    if problems:
        raise PolicyError(tuple(problems))
    return PolicyFile(Policy(actions, grace_s, queries, links), options)


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """The rules in plain JSON types, as `policy_from` reads them."""
    return {
        "actions": {
            str(kind): {str(severity): str(policy.action(kind, severity)) for severity in Severity}
            for kind in FAULTS
        },
        "grace": {str(kind): policy.grace_s[kind] for kind in FAULTS},
        "prometheus": to_builtins(policy.queries),
        "links": dict(policy.links),
    }


def _table(data: Mapping[str, Any], name: str, problems: list[str]) -> Mapping[str, Any]:
    table = data.get(name, {})
    if isinstance(table, Mapping):
        return table
    problems.append(f"{name}: is {table!r}, expected a table [{name}]")
    return {}


def _mode(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    problems += [
        f"policy.{key}: unknown key, {suggestion(key, ('mode',))}" for key in table if key != "mode"
    ]
    if "mode" not in table:
        return {}
    mode = table["mode"]
    if mode not in _MODES:
        problems.append(f"policy.mode: is {mode!r}, expected act or observe")
    return {MODE: mode == "observe"}


def _options(data: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    names = _OPTIONS[name]
    for key, value in _table(data, name, problems).items():
        other = next((table for table, names in _OPTIONS.items() if key in names), None)
        if other is None:
            problems.append(f"{name}.{key}: unknown key, {suggestion(key, names)}")
        elif other != name:
            problems.append(f"{name}.{key}: belongs into table [{other}]")
        elif (problem := problem_of(key, value)) is not None:
            problems.append(f"{name}.{key}: {problem}")
        else:
            options[key] = value
    return options


def _actions(
    table: Mapping[str, Any], problems: list[str]
) -> dict[tuple[Kind, Severity], PolicyAction]:
    """`kind = action`, or `kind = {severity = action}`."""
    actions: dict[tuple[Kind, Severity], PolicyAction] = {}
    for kind, words in _by_kind(table, "actions", problems):
        allowed = _NOBODY if kind in OF_LIGHTHOUSE else tuple(PolicyAction)
        by_severity = words if isinstance(words, Mapping) else dict.fromkeys(Severity, words)
        if all(level in tuple(Severity) and word in allowed for level, word in by_severity.items()):
            actions |= {
                (kind, Severity(level)): PolicyAction(word) for level, word in by_severity.items()
            }
        else:
            problems.append(
                f"actions.{kind}: is {words!r}, expected {', '.join(allowed)}, or one of them for "
                f"each of {', '.join(Severity)}"
            )
    return actions


def _by_kind(
    table: Mapping[str, Any], where: str, problems: list[str]
) -> Iterator[tuple[Kind, Any]]:
    for name, value in table.items():
        kind = next((fault for fault in FAULTS if fault == name), None)
        if kind is None:
            kinds = tuple(map(str, FAULTS))
            problems.append(f"{where}.{name}: unknown kind of fault, {suggestion(name, kinds)}")
        else:
            yield kind, value


def _grace(table: Mapping[str, Any], problems: list[str]) -> dict[Kind, float]:
    """`kind = seconds`."""
    grace_s: dict[Kind, float] = {}
    for kind, value in _by_kind(table, "grace", problems):
        if type(value) in (int, float) and 0 <= value <= _GRACE_MOST_S:
            grace_s[kind] = float(value)
        else:
            most = f"expected seconds, 0 to {_GRACE_MOST_S:g}"
            problems.append(f"grace.{kind}: is {value!r}, {most}")
    return grace_s


_NOBODY: Final = (PolicyAction.OBSERVE, PolicyAction.PAGE)
"""What fits a fault that accuses no group: there is nobody to evict."""


def _queries(tables: Any, problems: list[str]) -> tuple[PrometheusQuery, ...]:
    if not isinstance(tables, list | tuple) or len(tables) > QUERIES_MOST:
        problems.append(f"prometheus: expected at most {QUERIES_MOST} tables [[prometheus]]")
        return ()
    rows = (query_from(row, f"prometheus {n}", problems) for n, row in enumerate(tables, 1))
    return tuple(row for row in rows if row is not None)


def _links(table: Mapping[str, Any], problems: list[str]) -> dict[str, str]:
    wrong = {name: link_problem(name, template) for name, template in table.items()}
    problems += [f"links.{name}: {problem}" for name, problem in wrong.items() if problem]
    if len(table) > LINKS_MOST:
        problems.append(f"links: expected at most {LINKS_MOST}")
    return dict(table)


# -- effective ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effective:
    """The policy in force, and where each option comes from."""

    config: KeeperConfig
    policy: Policy = DEFAULT
    path: Path | None = None
    """None: no file, only defaults and command line."""
    loaded_s: float = 0.0
    """Unix time."""
    number: int = 1
    """Counts loads since the start."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Option -> `file` or `command line`; the others have their defaults."""
    waiting: Mapping[str, Any] = field(default_factory=dict)
    """Option -> value in the file that only a restart applies."""


# -- changes -----------------------------------------------------------------------------------


def changes(before: Effective, after: Effective) -> dict[str, list[Any]]:
    """Key -> old value, new value; an option that waits for a restart has the file's value."""
    old, new = _flat(before), _flat(after)
    return {
        key: [old.get(key), new.get(key)]
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def _flat(effective: Effective) -> dict[str, Any]:
    rules = policy_to_json(effective.policy)
    flat: dict[str, Any] = {
        f"actions.{kind}.{severity}": action
        for kind, row in rules["actions"].items()
        for severity, action in row.items()
    }
    flat |= {f"grace.{kind}": seconds for kind, seconds in rules["grace"].items()}
    for number, row in enumerate(rules["prometheus"], 1):
        flat[f"prometheus.{number}"] = row
    flat |= {f"links.{name}": template for name, template in rules["links"].items()}
    for option in fields(KeeperConfig):
        flat[option.name] = getattr(effective.config, option.name)
        if option.name in effective.waiting:
            flat[f"{option.name} (after a restart)"] = effective.waiting[option.name]
    return flat
