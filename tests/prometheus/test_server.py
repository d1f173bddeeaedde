"""The server that other tests lean on answers, and says what is wrong."""

from __future__ import annotations

import pytest

from tests.prometheus.server import prometheus

pytestmark = pytest.mark.integration


def test_it_evaluates_and_names_what_it_cannot_read() -> None:
    with prometheus("global: {scrape_interval: 1s}") as prom:
        assert [sample.value for sample in prom.query("1 + 1")] == [2.0]
        assert prom.query("absent(up)")[0].labels == {}
        assert prom.query("up") == []
        with pytest.raises(AssertionError, match="unclosed left parenthesis"):
            prom.query("sum(")
        assert prom.alerts() == {}
