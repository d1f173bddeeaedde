"""What holds for every test: how many examples a property is tried on, and what the unit part
need not load.

Before its first test each of two workers has 3,000 modules, and a million objects, of which none
goes before the end: they are kept out of the sight of the garbage collector.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.deep import DEEP

settings.register_profile("lightkeeper", max_examples=30 * DEEP, deadline=None)
settings.load_profile("lightkeeper")  # no deadline: a busy host is no defect of the code

UNIT_PART: Final = "not integration"
"""What the Makefile gives as -m for the unit part."""
_WHOLLY_INTEGRATION = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.integration\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The unit part loads no file of which all is deselected or skipped: each worker would
    compile it, and import what it needs (Jupyter, Kubernetes, TorchFT)."""
    if config.option.markexpr != UNIT_PART:
        return None
    if collection_path.is_dir():
        bench = collection_path == Path(__file__).parent / "bench"
        return True if bench and "LIGHTKEEPER_BENCH" not in os.environ else None
    if not collection_path.name.startswith("test_"):
        return None
    return True if _WHOLLY_INTEGRATION.search(collection_path.read_text("utf-8")) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        return (yield)
    finally:
        gc.unfreeze()
