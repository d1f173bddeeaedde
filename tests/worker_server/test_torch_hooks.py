"""Noticing an import, whoever else plays with the import machinery."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder, SourceFileLoader

import pytest

from lightkeeper.worker_server.rank.torch_hooks import when_imported

NAME = "lightkeeper_late_module"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that can be imported, and the moments at which it was noticed."""
    file = tmp_path / f"{NAME}.py"
    file.write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    importlib.invalidate_caches()
    yield file
    sys.modules.pop(NAME, None)


@pytest.fixture
def noticed(module):
    seen = []
    when_imported(NAME, lambda: seen.append(sys.modules[NAME].ready))
    return seen


def test_it_is_noticed_once_when_it_is_all_there(noticed):
    before = len(sys.meta_path)
    importlib.import_module(NAME)
    assert noticed == [True]
    assert len(sys.meta_path) == before - 1


def test_asking_whether_it_is_installed_is_not_importing_it(noticed):
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME) is not None
    assert noticed == []
    importlib.import_module(NAME)
    assert noticed == [True]


def test_an_import_that_fails_and_is_tried_again_is_noticed(noticed, module):
    module.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    module.write_text("ready = 'at last'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert noticed == ["at last"]


def test_a_reload_is_not_noticed_again_and_the_loader_is_the_modules_own(noticed):
    loaded = importlib.import_module(NAME)
    assert type(loaded.__loader__) is type(loaded.__spec__.loader) is SourceFileLoader
    importlib.reload(loaded)
    assert noticed == [True]


def test_somebody_who_empties_the_list_of_finders_loses_us_and_nothing_else(noticed):
    sys.meta_path[:] = [PathFinder]
    assert importlib.import_module(NAME).ready
    assert noticed == []


class Asking:
    """A finder as others write them: asks importlib while it is being asked."""

    def __init__(self):
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        if self.busy or name != NAME:
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False


@pytest.mark.parametrize("place", [0, 99], ids=["before us", "after us"])
def test_beside_others_of_its_kind_it_is_noticed_once(noticed, place):
    sys.meta_path.insert(place or 0, Asking())
    importlib.import_module(NAME)
    assert noticed == [True]


def test_two_that_wait_for_it_are_both_told(noticed):
    when_imported(NAME, lambda: noticed.append("and the other"))
    importlib.import_module(NAME)
    assert noticed == [True, "and the other"]
