"""Reading ranks on a machine on which others have accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service, StartError
from lightkeeper.worker_server.rank.settings import SettingError, Settings
from lightkeeper.worker_server.sidecar import RefusalError
from lightkeeper.worker_server.sidecar.app import RequestGuard
from tests.monitor.api import TOKEN, Api, options


def test_closed_reads_need_the_token_on_loopback(tmp_path: Path) -> None:
    with Service(options(tmp_path, closed_reads=True)) as made:
        api = Api(made)
        for path in ("/v1/ranks/rg_0.0/stacks", "/v1/incidents/x/bundle"):
            assert api.call("GET", path).status_code == 401
            assert api.call("GET", path, headers=TOKEN).status_code == 404
        assert api.call("GET", "/healthz").status_code == 200


def test_a_workerserver_with_closed_reads_refuses_who_has_no_token() -> None:
    from flask import Flask

    environ = {"LIGHTKEEPER_CLOSED_READS": "1", "LIGHTKEEPER_TOKEN": "secret"}
    guard = RequestGuard(Settings.from_environ(environ, 0))
    with Flask("x").test_request_context(), pytest.raises(RefusalError):
        guard.may_read()
    with Flask("x").test_request_context(headers=TOKEN):
        guard.may_read()


@pytest.mark.parametrize("more", [{"token": None}, {"open_reads": True}])
def test_closed_reads_without_a_token_are_a_mistake(tmp_path: Path, more) -> None:
    with pytest.raises(StartError, match="closed-reads"):
        Service(options(tmp_path, closed_reads=True, **more))
    with pytest.raises(SettingError, match="CLOSED_READS"):
        Settings.from_environ({"LIGHTKEEPER_CLOSED_READS": "1", "LIGHTKEEPER_TOKEN": ""}, 0)
