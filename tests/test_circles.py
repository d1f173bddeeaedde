"""No two files of the product import each other in a circle, also not lazily or for types alone."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("lightkeeper", "gate", "monitor", "worker_server", "trainer", "dashboards")


def circle_of(imports: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return None


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


def test_no_files_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert circle_of(imports) is None


def test_a_circle_of_three_is_found() -> None:
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) is not None
