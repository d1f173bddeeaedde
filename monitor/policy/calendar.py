"""Maintenance windows as a policy file writes them, and back. All times are UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time
from typing import Any, Final

from monitor.policy.windows import DAYS, Once, Weekly, Window, moment

_KEYS: Final = ("name", "days", "from", "to")
_CLOCK: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_EXPECTED: Final = "expected a time such as '22:00', or a date such as 2026-12-24T22:00:00Z"
_NAME_MAX: Final = 100


def window_from(held: Any, where: str, problems: list[str]) -> Window | None:
    """One window of a policy file; None when `problems` says what is wrong with it."""
    if not isinstance(held, Mapping):
        problems.append(f"{where}: is {held!r}, expected a table [[maintenance]]")
        return None
    before = len(problems)
    problems += [
        f"{where}.{key}: unknown key, expected {', '.join(_KEYS)}"
        for key in held
        if key not in _KEYS
    ]
    name = held.get("name", where)
    if not isinstance(name, str) or not name.strip() or len(name) > _NAME_MAX:
        problems.append(f"{where}.name: is {name!r}, expected 1 to {_NAME_MAX} characters")
    begins = _time(held, "from", where, problems)
    ends = _time(held, "to", where, problems)
    days = _days(held, where, problems)
    if len(problems) > before or begins is None or ends is None:
        return None
    name = " ".join(str(name).split())
    if isinstance(begins, time) and isinstance(ends, time):
        return Weekly(name, days, _second(begins), _second(ends))
    if isinstance(begins, datetime) and isinstance(ends, datetime):
        return _once(Once(name, begins.timestamp(), ends.timestamp()), held, where, problems)
    problems.append(f"{where}: from and to are of two sorts, expected two times or two dates")
    return None


def _once(window: Once, held: Mapping[str, Any], where: str, problems: list[str]) -> Once | None:
    if "days" in held:
        problems.append(f"{where}.days: only for times of the day, from and to are dates here")
    elif window.to_s <= window.from_s:
        problems.append(f"{where}.to: is not after from")
    else:
        return window
    return None


def window_to_json(window: Window) -> dict[str, Any]:
    """A window as `window_from` reads it."""
    match window:
        case Weekly():
            return {
                "name": window.name,
                "days": [DAYS[day] for day in window.days],
                "from": _clock(window.from_s),
                "to": _clock(window.to_s),
            }
        case Once():
            return {
                "name": window.name,
                "from": moment(window.from_s),
                "to": moment(window.to_s),
            }


def _time(
    held: Mapping[str, Any], key: str, where: str, problems: list[str]
) -> time | datetime | None:
    value = held.get(key)
    found: time | datetime | None = None
    if isinstance(value, str):
        found = _parsed(value)
    elif isinstance(value, datetime):
        found = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, time):
        found = value
    if found is None:
        was = f"is {value!r}" if key in held else "is missing"
        problems.append(f"{where}.{key}: {was}, {_EXPECTED}")
    return found


def _parsed(text: str) -> time | datetime | None:
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        return time(int(clock[1]), int(clock[2]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _days(held: Mapping[str, Any], where: str, problems: list[str]) -> tuple[int, ...]:
    days = held.get("days", list(DAYS))
    if isinstance(days, list) and days and all(day in DAYS for day in days):
        return tuple(sorted({DAYS.index(day) for day in days}))
    problems.append(f"{where}.days: is {days!r}, expected some of {', '.join(DAYS)}")
    return ()


def _second(at: time) -> float:
    return at.hour * 3600.0 + at.minute * 60.0


def _clock(second: float) -> str:
    return f"{int(second) // 3600:02}:{int(second) % 3600 // 60:02}"
