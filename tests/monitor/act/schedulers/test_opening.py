"""Which driver a name means, and the name that our marks on nodes bear: the quarantine list's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lightkeeper.monitor.act.schedulers.build import DRIVERS, StoredName
from lightkeeper.monitor.store.place import StoreError
from lightkeeper.monitor.store.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.db"


def test_the_name_of_a_list_is_made_up_once_and_kept(path, tmp_path):
    with closing(Store(path)) as store:
        first = StoredName(store)()
        assert StoredName(store)() == first
    with closing(Store(path)) as again, closing(Store(tmp_path / "n.db")) as other:
        assert StoredName(again)() == first
        assert StoredName(other)() != first


def test_a_monitor_that_may_not_write_makes_no_name_that_nobody_would_know(path):
    with closing(Store(path)) as store:
        store.follow()
        with pytest.raises(StoreError, match="does not keep the name"):
            StoredName(store)()


@pytest.mark.parametrize("name", [usage.partition("=")[0] for usage in DRIVERS])
def test_every_driver_passes_the_conformance_suite(name):
    path = Path(__file__).with_name(f"test_{name}.py")
    has_it = path.exists() and "(Conformance)" in path.read_text()
    assert has_it, f"inherit tests/monitor/act/schedulers/conformance.py's Conformance in {path}"
