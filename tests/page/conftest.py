"""A browser for this folder, and what opens and closes within one test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.show.web.incident_page import BundleStacks
from lightkeeper.monitor.show.web.stacks import StacksReader
from tests.monitor.act.evidence.scene import REAL
from tests.monitor.decide.scene import ID
from tests.page.browsing import Opened, Windows, chromium
from tests.page.serving import Stage, close_all

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not of the session: while it lives, no other test of this process has an event loop."""
    with chromium() as made:
        yield made


@pytest.fixture(scope="package")
def windows() -> Windows:
    return {}


@pytest.fixture
def opened(browser: Browser, windows: Windows) -> Iterator[Opened]:
    """Opens pages; an error on any of them fails the test."""
    made = Opened(browser, windows)
    yield made
    made.close()
    assert not made.errors, made.errors


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    """Makes monitors to look at: `stage(view, token=None)`."""
    stages: list[Stage] = []

    def make(*args, **more) -> Stage:
        stages.append(Stage(*args, **more))
        return stages[-1]

    yield make
    close_all(stages)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> BundleStacks:
    """In the bundle of a real fleet."""
    shutil.copy(REAL, (folder := tmp_path_factory.mktemp("evidence")) / f"{ID}.zip")
    bundles = BundleDir(folder, KeeperConfig())
    bundles.open()
    return StacksReader(bundles).get(ID)
