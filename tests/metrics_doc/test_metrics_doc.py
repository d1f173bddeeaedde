"""docs/metrics.md is what the code says, and the code follows Prometheus' conventions."""

from __future__ import annotations

import re

from tests.metrics_doc import page
from tests.metrics_doc.__main__ import main
from tests.metrics_doc.catalogue import catalogue, every

FORBIDDEN = {"step", "seq", "sequence", "stack", "reason_text", "traceback", "incarnation", "pid"}
MAY_BEAR_A_REPLICA_ID = re.compile(r"lightkeeper_rank_info")


def test_the_committed_page_is_what_the_code_says(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_the_check_finds_a_page_that_is_old(tmp_path, monkeypatch, capsys):
    old = tmp_path / "metrics.md"
    old.write_text(page.text().replace("lightkeeper_ranks", "lightkeeper_rangs"))
    monkeypatch.setattr(page, "PAGE", old)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_names_follow_the_conventions():
    odd_unit = re.compile(r"_(ms|milliseconds|minutes|hours|mb|kb|percent|age)(_total)?$")
    for entry in every():
        name = entry.name
        assert re.fullmatch(r"(lightkeeper|process)_[a-z0-9_]+", name)
        assert name.endswith("_total") == (entry.type == "counter"), name
        assert len(entry.text) > 8, name
        assert entry.series, name
        assert not odd_unit.search(name)
        assert not FORBIDDEN & set(entry.labels) or name == "lightkeeper_rank_info", name
        assert "replica_id" not in entry.labels or MAY_BEAR_A_REPLICA_ID.fullmatch(name), name


def test_each_page_names_a_metric_once():
    for heading, entries in catalogue():
        names = [entry.name for entry in entries]
        assert len(names) == len(set(names)), heading
    monitors = [e.name for heading, es in catalogue() if "page" not in heading for e in es]
    assert len(monitors) == len(set(monitors))
