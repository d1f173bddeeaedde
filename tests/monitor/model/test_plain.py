"""Records as plain JSON and back."""

import pytest

from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.plain import from_plain, to_plain


def test_what_was_written_is_read() -> None:
    eviction = Eviction("i", "g", None, 1.0, ())
    assert from_plain(Eviction, to_plain(eviction)) == eviction
    with pytest.raises(ValueError, match="asked_s"):
        from_plain(Eviction, {**to_plain(eviction), "asked_s": "soon"})


def test_a_class_that_was_not_prepared_for_threads_is_refused() -> None:
    class Other:
        pass

    with pytest.raises(TypeError, match="Other is read from JSON and not @readable"):
        from_plain(Other, {})
