"""The name that our marks on nodes bear is the quarantine list's, which the store holds."""

from __future__ import annotations

import pytest

from monitor.act.schedulers.build import StoredName
from monitor.store.place import StoreError
from monitor.store.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.db"


def test_the_name_is_made_up_once_and_kept(path):
    store = Store(path)
    first = StoredName(store)()
    assert StoredName(store)() == first
    store.close()
    again = Store(path)
    assert StoredName(again)() == first
    again.close()


def test_two_lists_have_two_names(path, tmp_path):
    one, other = Store(path), Store(tmp_path / "n.db")
    assert StoredName(one)() != StoredName(other)()
    one.close()
    other.close()


def test_a_monitor_that_may_not_write_makes_no_name_that_nobody_would_know(path):
    store = Store(path)
    store.follow()
    with pytest.raises(StoreError, match="does not keep the name"):
        StoredName(store)()
    store.close()
