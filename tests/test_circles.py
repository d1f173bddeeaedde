"""No two files of the product import each other in a circle, also not lazily or for types alone."""

from tests.counts import circle_of, imports


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle_of(imports()) == []


def test_a_circle_of_three_is_found() -> None:
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "c", "b", "a"]
