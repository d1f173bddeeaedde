"""What commands and ranks find by themselves: the token and the monitor of this user and host."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from lightkeeper.worker_server import home
from lightkeeper.worker_server.home import (
    TokenFileError,
    find_token,
    make_token_file,
    read_token_file,
)
from lightkeeper.worker_server.rank.settings import LOOPBACK, Settings
from lightkeeper.worker_server.sidecar.serve import bind_towards


def secret(path: Path, content: str = "sesame\n", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def test_every_variable_that_we_read_is_known():
    root, read = Path(home.__file__).parents[1], set()
    for package in ("lightkeeper", "monitor", "trainer", "worker_server"):
        for path in (root / package).rglob("*.py"):
            read |= set(re.findall(r"LIGHTKEEPER_[A-Z_]*[A-Z]", path.read_text()))
    assert read - {"LIGHTKEEPER_COMPLETE", "LIGHTKEEPER_NOTIFY"} <= home.VARIABLES  # click's


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("LIGHTKEEPER_MONTIOR", "LIGHTKEEPER_MONITOR"), ("LIGHTKEPER_JOB", "LIGHTKEEPER_JOB"),
        ("LIGHTKEEPER_TOKENFILE", "LIGHTKEEPER_TOKEN_FILE"),
        ("LIGHTKEEPER_ATACH", "LIGHTKEEPER_ATTACH"), ("LIGHTKEEPER_HOSTS", "LIGHTKEEPER_HOST"),
        ("LIGHTKEEPER_MONITOR", None), ("LIGHTKEEPER_BENCH", None), ("LIGHTHOUSE_MONITOR", None),
    ],
    ids=str,
)  # fmt: skip
def test_a_misspelt_variable_is_named_with_what_was_meant(name, near):
    said = f"nothing reads {name} (did you mean {near}?)" if near else ""
    assert home.misspelt({name: "1", "HOME": "/"}) == said


def test_the_token_is_made_once_for_its_owner_alone_and_read_by_who_comes_later(tmp_path):
    path = tmp_path / "state" / "lightkeeper" / "token"
    made = set()
    threads = [threading.Thread(target=lambda: made.add(make_token_file(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == {read_token_file(path)}
    assert len(next(iter(made))) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert find_token({"XDG_STATE_HOME": str(tmp_path / "state")}) in made


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o666], ids=oct)
def test_a_token_that_others_can_read_or_could_have_written_is_refused_with_what_mends_it(
    tmp_path, mode
):
    path = secret(tmp_path / "token", mode=mode)
    with pytest.raises(TokenFileError, match=f"others can read: chmod 600 {path}"):
        read_token_file(path)
    with pytest.raises(TokenFileError):
        make_token_file(path)
    assert path.read_text() == "sesame\n"


def test_a_token_that_cannot_be_made_is_said_with_its_place():
    environ = {"XDG_STATE_HOME": "/proc/none"}  # where nobody makes a folder
    with pytest.raises(TokenFileError, match=r"^cannot make /proc/none/lightkeeper/token: "):
        find_token(environ, own=make_token_file)


def test_a_volume_of_kubernetes_gives_its_group_the_token(tmp_path):
    assert read_token_file(secret(tmp_path / "token", mode=0o440)) == "sesame"


def test_a_pipe_gives_the_token_once_and_nobody_waits_for_one_without_a_writer(tmp_path):
    os.mkfifo(path := tmp_path / "token", 0o600)
    with pytest.raises(TokenFileError, match="does not hold one plain word"):
        read_token_file(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("w") as writer:
        print("sesame", file=writer, flush=True)
        assert read_token_file(path) == "sesame"
    os.close(reader)


def test_a_token_of_another_user_is_refused(tmp_path, monkeypatch):
    path = secret(tmp_path / "token")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:
        os.chown(path, 4711, -1)
    with pytest.raises(TokenFileError, match="belongs to another user"):
        read_token_file(path)


def test_the_variables_come_before_the_users_own_file_and_empty_ones_mean_none(tmp_path):
    own = {"XDG_STATE_HOME": str(tmp_path)}
    secret(tmp_path / "lightkeeper" / "token", "own")
    named = str(secret(tmp_path / "named", "named"))
    assert find_token(own) == "own"
    assert find_token({**own, "LIGHTKEEPER_TOKEN": "said"}) == "said"
    assert find_token({**own, "LIGHTKEEPER_TOKEN": "said", "LIGHTKEEPER_TOKEN_FILE": named}) == (
        "named"
    )
    assert find_token({**own, "LIGHTKEEPER_TOKEN": ""}) is None
    assert find_token({**own, "LIGHTKEEPER_TOKEN_FILE": ""}) is None


def test_a_rank_goes_on_without_its_users_file_where_that_is_open_to_others(tmp_path):
    secret(tmp_path / "lightkeeper" / "token", mode=0o644)
    settings = Settings.from_environ({"XDG_STATE_HOME": str(tmp_path)}, 0)
    assert settings.token is None
    assert "others can read: chmod 600" in settings.no_token


def test_a_rank_that_nobody_told_looks_where_the_command_looks_and_an_empty_word_is_nobody():
    unnamed = Settings.from_environ({}, 0)
    assert (unnamed.monitors, unnamed.unnamed) == ((home.DEFAULT_MONITOR,), True)
    nobody = Settings.from_environ({"LIGHTKEEPER_MONITOR": ""}, 0)
    assert (nobody.monitors, nobody.unnamed) == ((), False)


# -- who listens on the default port ---------------------------------------------------------------

LISTENS, CONNECTED = "0A", "01"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def table(*rows: tuple[str, str, int]) -> str:
    line = "   0: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 {:5d}        0 1 1\n"
    return HEAD + "".join(line.format(*row) for row in rows)


@pytest.mark.parametrize(
    ("v4", "v6", "says"),
    [
        pytest.param(table(("0100007F:2116", LISTENS, os.geteuid())), HEAD, None, id="we"),
        pytest.param(table(("0100007F:2116", LISTENS, 0)), HEAD, None, id="root"),
        pytest.param(table(("0100007F:2116", LISTENS, 4711)), HEAD, "uid 4711", id="a stranger"),
        pytest.param(HEAD, table((f"{'0' * 32}:2116", LISTENS, 4711)), "uid 4711", id="by IPv6"),
        pytest.param(table(("0100007F:2116", LISTENS, 4711), ("0100007F:2116", LISTENS, 0)), HEAD,
                     "uid 4711", id="a stranger beside root"),
        pytest.param(table(("0100007F:2116", CONNECTED, os.geteuid())), HEAD, "nobody listens",
                     id="a client's port"),
        pytest.param(table(("0100007F:2116", LISTENS, 0), ("0100000A:2116", LISTENS, 4711)), HEAD,
                     None, id="a stranger at another address"),
        pytest.param(table(("0100007F:2117", LISTENS, os.geteuid())), HEAD, "nobody listens",
                     id="another port"),
    ],
)  # fmt: skip
def test_the_token_goes_to_the_default_address_only_where_its_owner_listens(tmp_path, v4, v6, says):
    (tmp_path / "tcp").write_text(v4)
    (tmp_path / "tcp6").write_text(v6)
    why = home.not_ours(tmp_path)
    assert (why is None) if says is None else says in str(why)


# -- where a WorkerServer listens ------------------------------------------------------------------


def test_it_listens_where_a_monitor_elsewhere_can_reach_it_and_only_with_a_token(monkeypatch):
    class Route:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, address):
            self.to = address[0]

        def getsockname(self):
            return ("127.0.0.1" if self.to.startswith("127.") else "192.0.2.7", 1)

    monkeypatch.setattr("lightkeeper.worker_server.sidecar.serve.socket.socket", Route)

    def bound(monitor: str, token: str | None = "sesame") -> str:
        return bind_towards(Settings(monitors=(monitor,), token=token))

    assert bound("http://192.0.2.1:8470") == "192.0.2.7"
    assert bound("http://192.0.2.1:8470", token=None) == LOOPBACK
    assert bound("http://192.0.2.7:8470") == LOOPBACK
    assert bound("http://127.0.0.1:8470") == LOOPBACK
    assert bind_towards(Settings(token="sesame")) == LOOPBACK
