"""A Grafana that answers as documented, and its token."""

import pytest

from tests.dashboards.grafana_server import EDITOR, GrafanaServer


@pytest.fixture
def grafana():
    running = GrafanaServer()
    yield running
    running.close()


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(EDITOR + "\n")
    return path
