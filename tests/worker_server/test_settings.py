"""What a sidecar does, by the environment."""

from __future__ import annotations

import pytest

from lightkeeper.worker_server.rank.settings import SettingError, Settings, for_sidecar


def test_a_token_is_not_shown_when_settings_are_printed():
    assert "hush" not in repr(Settings(token="hush"))


@pytest.mark.parametrize(
    "token",
    ["hüsh", "hush\nhush", "hush\x00", "\udcffhush"],
    ids=["accent", "lines", "nul", "bytes"],
)
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(tmp_path, token):
    (tmp_path / "token").write_bytes(token.encode(errors="surrogateescape"))
    (tmp_path / "token").chmod(0o600)
    for environ in (
        {"LIGHTKEEPER_TOKEN": token},
        {"LIGHTKEEPER_TOKEN_FILE": str(tmp_path / "token")},
    ):
        with pytest.raises(SettingError, match="LIGHTKEEPER_TOKEN") as refused:
            Settings.from_environ(environ, 0)
        assert "sh" not in str(refused.value).replace(str(tmp_path), "")


def test_the_port_is_the_base_plus_the_group_rank():
    assert Settings.from_environ({"LIGHTKEEPER_PORT_BASE": "9100"}, 3).port == 9103
    assert Settings.from_environ({}, 3).port == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"LIGHTKEEPER_PORT_BASE": "x"}, {"LIGHTKEEPER_PORT_BASE": "65535"},
        {"LIGHTKEEPER_LINGER_S": "long"}, {"LIGHTKEEPER_LINGER_S": "-1"},
        {"LIGHTKEEPER_LINGER_S": "nan"}, {"LIGHTKEEPER_MONITOR": "host:80"},
        {"LIGHTKEEPER_MONITOR": "http://a:80, host:80"},
        {"LIGHTKEEPER_TOKEN_FILE": "/nonexistent"}, {"LIGHTKEEPER_TOKEN_FILE": "/dev/null"},
        {"LIGHTKEEPER_HOST_PORT": "65536"}, {"LIGHTKEEPER_HOST_PORT": "x"},
        {"LIGHTKEEPER_OPEN_READS": "yes"},
        {"LIGHTKEEPER_TLS_CERT": "/dev/null"}, {"LIGHTKEEPER_TLS_KEY": "/dev/null"},
        {"LIGHTKEEPER_TLS_CERT": "/nonexistent", "LIGHTKEEPER_TLS_KEY": "/dev/null"},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(environ):
    with pytest.raises(SettingError, match=next(iter(environ))):
        Settings.from_environ(environ, 1)


def test_settings_of_the_server(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    settings = Settings.from_environ(
        {
            "LIGHTKEEPER_HOST_PORT": "8471", "LIGHTKEEPER_OPEN_READS": "1",
            "LIGHTKEEPER_TLS_CERT": str(cert), "LIGHTKEEPER_TLS_KEY": str(key),
        }, 0,
    )  # fmt: skip
    assert (settings.host_port, settings.open_reads, settings.scheme) == (8471, True, "https")
    assert (settings.tls_cert, settings.tls_key) == (cert, key)
    plain = Settings.from_environ({}, 0)
    assert (plain.host_port, plain.open_reads, plain.scheme) == (0, False, "http")


@pytest.mark.parametrize(
    ("bind", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("node7", False)],
)  # fmt: skip
def test_only_loopback_addresses_are_loopback(bind, loopback):
    assert Settings(bind=bind).loopback is loopback


def test_files_are_found_by_a_sidecar_that_works_in_another_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    environ = for_sidecar({"LIGHTKEEPER_TOKEN_FILE": "token", "LIGHTKEEPER_TLS_KEY": "", "A": "b"})
    assert environ == {
        "LIGHTKEEPER_TOKEN_FILE": str(tmp_path / "token"), "LIGHTKEEPER_TLS_KEY": "", "A": "b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({"LIGHTKEEPER_OPEN_READS": "yes"}, "0 or 1"), ({"LIGHTKEEPER_LINGER_S": "soon"}, "seconds"),
     ({"LIGHTKEEPER_HOST_PORT": "70000"}, "a port, 0 to 65535")],
)  # fmt: skip
def test_a_bad_value_is_refused_with_what_was_expected(environ, expected):
    with pytest.raises(SettingError, match=expected):
        Settings.from_environ(environ, 1)
