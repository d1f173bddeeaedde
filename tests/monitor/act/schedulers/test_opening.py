"""Which driver a name means, and the name that our marks on nodes bear: the quarantine list's."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.act.schedulers.build import DRIVERS, StoredName, driver_of
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


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_every_driver_passes_the_conformance_suite(driver):
    path = Path(__file__).with_name(f"test_{driver.name}.py")
    has_it = path.exists() and "(Conformance)" in path.read_text()
    assert has_it, f"inherit tests/monitor/act/schedulers/conformance.py's Conformance in {path}"


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [("slurm", "slurm", ""), ("webhook=https://h/x?a=b", "webhook", "https://h/x?a=b")],
)
def test_a_driver_is_named_alone_or_with_its_url(text, name, url):
    driver, at = driver_of(text)
    assert (driver.name, at) == (name, url)


@pytest.mark.parametrize("text", ["", "webhook", "slurm=", "kubernetes=https://h", "lsf"])
def test_what_names_no_driver_is_none(text):
    assert driver_of(text) is None
