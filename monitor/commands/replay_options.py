"""What the options of `replay` say: thresholds of a what-if, and times."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from monitor.commands.errors import USAGE, CommandError
from monitor.config import KeeperConfig

_CONFIG_MAX_BYTES: Final = 1 << 20


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """Options that differ from the live ones.

    Raises:
        CommandError, ConfigError: what is wrong with them.
    """
    chosen: dict[str, Any] = {}
    if args.config is not None:
        chosen.update(read_config(args.config))
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set is {text!r}, expected NAME=VALUE", USAGE)
        chosen[name.strip()] = _value(name.strip(), value.strip())
    KeeperConfig.from_options(chosen)  # what is wrong with it is said before the files are read
    return chosen


def _value(name: str, text: str) -> Any:
    default = getattr(KeeperConfig(), name, 0.0)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise CommandError(f"--set {name} is {text!r}, expected true or false", USAGE)
        return text == "true"
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as exc:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise CommandError(f"--set {name} is {text!r}, expected {kind}", USAGE) from exc


def read_config(path: Path) -> dict[str, Any]:
    """Thresholds by name, from TOML or (`.json`) JSON.

    Raises:
        CommandError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_CONFIG_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise CommandError(f"cannot read {path}: {exc}", USAGE) from exc
    try:
        held = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{path}: {exc}", USAGE) from exc
    if not isinstance(held, dict):
        raise CommandError(f"{path}: expected thresholds by name", USAGE)
    defaults = KeeperConfig()
    for name, value in held.items():
        default = getattr(defaults, name, 0.0)
        fits = isinstance(value, bool) is isinstance(default, bool) and (
            isinstance(value, int) or (isinstance(value, float) and isinstance(default, float))
        )
        if not fits:
            raise CommandError(f"{path}: {name} is {value!r}, expected one like {default}", USAGE)
    return held


def parse_time(text: str, began_s: float) -> float:
    """Unix time of a date, a time of the day on which `began_s` lies, or Unix seconds.

    Raises:
        CommandError: it is none of them.
    """
    with contextlib.suppress(ValueError, OverflowError):
        seconds = float(text)
        if abs(seconds) < 1e11:
            return seconds
    began = datetime.datetime.fromtimestamp(began_s, tz=datetime.UTC).astimezone()
    for read in _readings(text, began):
        with contextlib.suppress(ValueError, OverflowError):
            return read.astimezone().timestamp() if read.tzinfo is None else read.timestamp()
    raise CommandError(
        f"{text!r} is no time; expected 17:04, 2026-11-21T17:04:30 or Unix seconds", USAGE
    )


def _readings(text: str, began: datetime.datetime) -> Iterator[datetime.datetime]:
    with contextlib.suppress(ValueError):
        yield datetime.datetime.fromisoformat(text)
    with contextlib.suppress(ValueError):
        yield datetime.datetime.combine(began.date(), datetime.time.fromisoformat(text))
