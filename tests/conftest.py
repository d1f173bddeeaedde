"""What holds for every test: which examples a property is tried on, which files a part of the
tests loads, and how processes share them.

Before its first test each worker has 2,000 to 3,400 modules, and 500,000 objects or more, of which
none goes before the end: the garbage collector does not run until they are there, and never sees
them.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.deep import DEEP, EXPLORES
from tests.sharing import scheduler, turn_of

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

gc.disable()
# `nohup make test &` in a script: what tests start would inherit it, and both are tested, too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # a handler is not inherited

# what tests start finds nobody's monitor on this machine, and nobody's token
os.environ.setdefault("LIGHTKEEPER_MONITOR", "")
os.environ.setdefault("LIGHTKEEPER_TOKEN", "")
_state = tempfile.TemporaryDirectory(prefix="lightkeeper-tests-")  # goes with this process
os.environ["XDG_STATE_HOME"] = _state.name

settings.register_profile(
    "lightkeeper",
    max_examples=20 * DEEP,
    derandomize=not EXPLORES,  # and no database of what failed once
    deadline=None,  # a busy host is no defect of the code
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lightkeeper")
if not EXPLORES and hasattr(providers, "_get_local_constants"):
    # It also draws from the constants of our modules that happen to be loaded: other ones in each
    # worker, for one file alone, and after any change. There is no setting for it.
    providers._get_local_constants = providers.Constants  # type: ignore[assignment]

UNIT_PART: Final = "not integration"
INTEGRATION_PART: Final = "integration"
"""What the Makefile gives as -m."""
LOADED: Final = pytest.StashKey[frozenset[str]]()
"""Modules that the tests loaded before the first of them ran."""
_WHOLLY_INTEGRATION = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.integration\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part loads no file of which all is deselected or skipped: each worker would compile it,
    and import what it needs (Jupyter, Kubernetes, TorchFT)."""
    part = config.option.markexpr
    if part not in (UNIT_PART, INTEGRATION_PART):
        return None
    if collection_path.is_dir():
        bench = collection_path == Path(__file__).parent / "bench"
        return True if bench and "LIGHTKEEPER_BENCH" not in os.environ else None
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    if part == UNIT_PART:
        return True if _WHOLLY_INTEGRATION.search(text) else None
    return None if "pytest.mark.integration" in text else True


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The same order in every process."""
    if config.option.markexpr == INTEGRATION_PART:
        items.sort(key=lambda item: turn_of(item.nodeid))


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[LOADED] = frozenset(sys.modules)


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """For `--dist loadscope` of the integration part."""
    integration = config.option.markexpr == INTEGRATION_PART
    return scheduler(config, log) if integration else None


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    gc.freeze()
    gc.enable()
    return (yield)
