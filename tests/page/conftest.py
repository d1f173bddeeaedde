"""A browser for this folder, and what opens and closes within one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.page.browsing import Opened, chromium
from tests.page.serving import Stage, close_all

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not of the session: while it lives, no other test of this process has an event loop."""
    with chromium() as made:
        yield made


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens pages; an error on any of them fails the test."""
    made = Opened(browser)
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
