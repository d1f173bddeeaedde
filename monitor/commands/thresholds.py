"""`--set NAME=VALUE`: a threshold of `monitor/model/config.py`, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from monitor.commands.command import CommandError, F, option
from monitor.model.config import KeeperConfig


def threshold(about: str) -> Callable[[F], F]:
    """The option; `changed` holds what was said."""
    return option("--set", "changed", multiple=True, metavar="NAME=VALUE", help=about)


def thresholds(changed: Iterable[str]) -> dict[str, Any]:
    """Values by name. Whether there is such a threshold, and its bounds, is the config's to say.

    Raises:
        CommandError: not NAME=VALUE, or no value of its kind.
    """
    chosen: dict[str, Any] = {}
    for text in changed:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise CommandError(f"--set is {text!r}, expected NAME=VALUE")
        chosen[name] = _value(name, value)
    return chosen


def _value(name: str, text: str) -> Any:
    default = getattr(KeeperConfig(), name, 0.0)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise CommandError(f"--set {name} is {text!r}, expected true or false")
        return text == "true"
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as exc:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise CommandError(f"--set {name} is {text!r}, expected {kind}") from exc
