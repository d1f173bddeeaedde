"""What a sidecar does, by the environment."""

from __future__ import annotations

import pytest

from worker_server.environment import SettingError, Settings


def test_the_token_file_wins_over_the_variable(tmp_path):
    (tmp_path / "token").write_text("from file\n")
    both = {"LIGHTKEEPER_TOKEN": "a", "LIGHTKEEPER_TOKEN_FILE": str(tmp_path / "token")}
    assert Settings.from_environ(both, 0).token == "from file"
    assert Settings.from_environ({"LIGHTKEEPER_TOKEN": "a"}, 0).token == "a"
    assert Settings.from_environ({"LIGHTKEEPER_TOKEN": ""}, 0).token is None


def test_a_token_is_not_shown_when_settings_are_printed():
    assert "hush" not in repr(Settings(token="hush"))


def test_the_port_is_the_base_plus_the_group_rank():
    assert Settings.from_environ({"LIGHTKEEPER_PORT_BASE": "9100"}, 3).port == 9103
    assert Settings.from_environ({}, 3).port == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"LIGHTKEEPER_PORT_BASE": "x"}, {"LIGHTKEEPER_PORT_BASE": "65535"},
        {"LIGHTKEEPER_LINGER_S": "long"}, {"LIGHTKEEPER_LINGER_S": "-1"},
        {"LIGHTKEEPER_LINGER_S": "nan"}, {"LIGHTKEEPER_MONITOR": "host:80"},
        {"LIGHTKEEPER_TOKEN_FILE": "/nonexistent"},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(environ):
    with pytest.raises(SettingError, match=next(iter(environ))):
        Settings.from_environ(environ, 1)
