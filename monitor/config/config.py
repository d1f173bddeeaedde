"""The configuration as a whole: all thresholds, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from monitor.config import deciding, detecting, keeping
from monitor.config.range import Range

RANGES: Final[Mapping[str, Range]] = {**detecting.RANGES, **deciding.RANGES, **keeping.RANGES}


class ConfigError(ValueError):
    """An option outside its range; the message is one line and names option and range."""


@dataclass(frozen=True, slots=True)
class KeeperConfig(keeping.Keeping, deciding.Deciding, detecting.Detecting):
    """What the keeper was told. All times are seconds.

    Raises:
        ConfigError: an option lies outside its range.
    """

    def __post_init__(self) -> None:
        for name in RANGES:
            self.check(name, getattr(self, name))
        if self.straggler_slow_windows > self.straggler_windows:
            raise ConfigError(
                f"straggler_slow_windows is {self.straggler_slow_windows}, "
                f"expected at most straggler_windows ({self.straggler_windows})"
            )

    @staticmethod
    def check(name: str, value: float) -> None:
        """Whether a value lies within the range of this option.

        Raises:
            ConfigError: it does not.
        """
        low, high = RANGES[name]
        if not low <= value <= high:
            raise ConfigError(f"{name} is {value}, expected {low:g} to {high:g}")

    @staticmethod
    def limited(name: str, value: float) -> float:
        """A value for this option, not beyond its range."""
        low, high = RANGES[name]
        return min(max(value, low), high)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KeeperConfig:
        """Configuration from named options; None means the default.

        Raises:
            ConfigError: an unknown option, or one outside its range.
        """
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name}, expected one of {sorted(known)}")
        return cls(**{name: value for name, value in options.items() if value is not None})
