"""What ranks, Lighthouse and network look like from the monitor, for all of its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.act.http import Fetcher
from tests.monitor.commands.calling import Command
from tests.monitor.fakes import FakeFleet, FakeLighthouse
from tests.monitor.process import TOKEN, Training
from tests.monitor.store.postgres import Cluster, cluster


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()


@pytest.fixture
def lighthouse() -> Iterator[FakeLighthouse]:
    made = FakeLighthouse()
    yield made
    made.close()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    made = Fetcher()
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One server for all: its tests are of one group (`tests.sharing`)."""
    yield from cluster()


@pytest.fixture
def training(fleet: FakeFleet, lighthouse: FakeLighthouse) -> Iterator[Training]:
    """Three groups of one rank that train."""
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    made = Training(*ranks)
    yield made
    made.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The token of the monitors here, for its owner alone."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours is set."""
    for name in [name for name in os.environ if name.startswith("LIGHTKEEPER")]:
        monkeypatch.delenv(name)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
