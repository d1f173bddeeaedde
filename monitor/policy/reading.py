"""A policy from a parsed file, and back. Pure: who reads the file is `monitor.rulebook`.

Everything that is wrong is told at once, one line each: where, what it is, what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from monitor.config import ConfigError, KeeperConfig
from monitor.detectors.verdict import FAULTS, Kind, Severity
from monitor.policy.calendar import window_from, window_to_json
from monitor.policy.options import GUARDS, MODE, THRESHOLDS, problem_of, suggestion
from monitor.policy.rules import DEFAULT, Action, Policy
from monitor.policy.windows import Window

_TABLES: Final = ("policy", "actions", "guards", "thresholds", "maintenance")
_OPTIONS: Final = {"guards": GUARDS, "thresholds": THRESHOLDS}
_MODES: Final = ("act", "observe")
_E = TypeVar("_E", bound=StrEnum)


class PolicyError(ValueError):
    """A policy that cannot be used; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """What a file says; what it does not mention is as ever."""

    policy: Policy = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `KeeperConfig`, by name."""


def policy_from(data: Mapping[str, Any]) -> PolicyFile:
    """The policy that a parsed file holds.

    Raises:
        PolicyError: all that is wrong with it.
    """
    problems: list[str] = []
    problems += [
        f"{key}: unknown table, {suggestion(key, _TABLES)}" for key in data if key not in _TABLES
    ]
    options = {
        **_mode(_table(data, "policy", problems), problems),
        **_options(data, "guards", problems),
        **_options(data, "thresholds", problems),
    }
    actions = {**DEFAULT.actions, **_actions(_table(data, "actions", problems), problems)}
    windows = _windows(data.get("maintenance", []), problems)
    if not problems:
        try:
            KeeperConfig.from_options(options)
        except ConfigError as exc:  # two options that do not go together
            problems.append(str(exc))
    if problems:
        raise PolicyError(tuple(problems))
    return PolicyFile(Policy(actions, windows), options)


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """The rules in plain JSON types, as `policy_from` reads them."""
    return {
        "actions": {
            str(kind): {str(severity): str(policy.action(kind, severity)) for severity in Severity}
            for kind in FAULTS
        },
        "maintenance": [window_to_json(one) for one in policy.windows],
    }


def _table(data: Mapping[str, Any], name: str, problems: list[str]) -> Mapping[str, Any]:
    held = data.get(name, {})
    if isinstance(held, Mapping):
        return held
    problems.append(f"{name}: is {held!r}, expected a table [{name}]")
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
    found: dict[str, Any] = {}
    known = _OPTIONS[name]
    for key, value in _table(data, name, problems).items():
        other = next((table for table, names in _OPTIONS.items() if key in names), None)
        if other is None:
            problems.append(f"{name}.{key}: unknown key, {suggestion(key, known)}")
        elif other != name:
            problems.append(f"{name}.{key}: belongs into table [{other}]")
        elif (problem := problem_of(key, value)) is not None:
            problems.append(f"{name}.{key}: {problem}")
        else:
            found[key] = value
    return found


def _actions(table: Mapping[str, Any], problems: list[str]) -> dict[tuple[Kind, Severity], Action]:
    """`kind = action`, or `kind = {severity = action}`."""
    found: dict[tuple[Kind, Severity], Action] = {}
    for name, said in table.items():
        kind = next((one for one in FAULTS if one == name), None)
        if kind is None:
            known = tuple(map(str, FAULTS))
            problems.append(f"actions.{name}: unknown kind of fault, {suggestion(name, known)}")
            continue
        each = said if isinstance(said, Mapping) else dict.fromkeys(map(str, Severity), said)
        before = len(problems)
        for level, word in each.items():
            where = f"actions.{name}.{level}" if each is said else f"actions.{name}"
            severity, action = _one_of(Severity, level), _one_of(Action, word)
            if severity is None:
                problems.append(f"{where}: unknown severity, expected {', '.join(Severity)}")
            elif action is None or (kind is Kind.LIGHTHOUSE_AWAY and action not in _NOBODY):
                allowed = _NOBODY if kind is Kind.LIGHTHOUSE_AWAY else tuple(Action)
                problems.append(f"{where}: is {word!r}, expected {', '.join(allowed)}")
            else:
                found[kind, severity] = action
            if each is not said and len(problems) > before:
                break  # one word for all severities is told once
    return found


_NOBODY: Final = (Action.OBSERVE, Action.PAGE)
"""For what accuses no group: there is nobody to evict."""


def _one_of(kind: type[_E], value: Any) -> _E | None:
    return next((one for one in kind if one == value), None)


def _windows(held: Any, problems: list[str]) -> tuple[Window, ...]:
    if not isinstance(held, list | tuple):
        problems.append(f"maintenance: is {held!r}, expected tables [[maintenance]]")
        return ()
    found: list[Window] = []
    for number, one in enumerate(held, 1):
        window = window_from(one, f"maintenance {number}", problems)
        if window is not None:
            found.append(window)
    return tuple(found)
