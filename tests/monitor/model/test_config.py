"""Options outside their range are refused by name."""

import pytest

from lightkeeper.monitor.model.config import RANGES, ConfigError, KeeperConfig


def test_the_defaults_are_within_their_ranges() -> None:
    KeeperConfig()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tick_s", 0.0, "tick_s is 0.0, expected 0.05 to 60"),
        ("min_replicas", 0, "min_replicas is 0, expected 1 to 1e+06"),
        ("straggler_ratio", 1.0, "straggler_ratio is 1.0, expected 1.01 to 100"),
        ("tick_s", float("nan"), "tick_s is nan, expected 0.05 to 60"),
    ],
)
def test_an_option_outside_its_range_is_named_with_its_range(name, value, message) -> None:
    with pytest.raises(ConfigError) as caught:
        KeeperConfig(**{name: value})
    assert str(caught.value) == message


def test_more_slow_windows_than_windows_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most straggler_windows"):
        KeeperConfig(straggler_windows=3, straggler_slow_windows=4)


def test_unknown_options_are_refused_and_none_means_the_default() -> None:
    assert KeeperConfig.from_options({"tick_s": 2.0, "min_replicas": None}).min_replicas == 1
    with pytest.raises(ConfigError, match="unknown option tock_s"):
        KeeperConfig.from_options({"tock_s": 1})


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == set(KeeperConfig.__dataclass_fields__) - {"observe"}
