"""The sketch: what it asks, says and draws, on answers that are made up here."""

import pytest

from dashboards import drawing
from dashboards.__main__ import main
from dashboards.asking import Series, Times, first_values
from dashboards.wording import colour_of, text_of
from tests.dashboards.boards import PATHS, load, panels

TIMES = Times(0.0, 3600.0, 5.0, {"instance": ".+", "topn": "40"})
EVIL = '<script>alert("1")</script>'


def panel(kind):
    """The first committed panel of a kind."""
    return next(one for path in PATHS for one in panels(load(path)) if one["type"] == kind)


def answers(kind, name):
    labels = {"replica_group": name, "rank": name, "host": name, "kind": name}
    return [[Series(labels, [(60.0 * at, 1.0) for at in range(10)], name)]
            for _ in panel(kind)["targets"]]  # fmt: skip


def test_a_query_is_filled_in_as_grafana_would():
    expr = 'topk($topn, rate(a{instance=~"$instance"}[$__rate_interval])) and b[$__range]'
    assert TIMES.fill(expr) == 'topk(40, rate(a{instance=~".+"}[35s])) and b[3600s]'


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_variable_has_a_first_value(path):
    values = first_values(load(path))
    assert values["topn"] == "40"
    assert values["job"] == ".+"
    assert values["monitor_url"] == "http://127.0.0.1:8470"


@pytest.mark.parametrize("kind", sorted(drawing.DRAWN))
def test_what_ranks_and_people_wrote_is_escaped(kind):
    drawn = drawing.DRAWN[kind](panel(kind), answers(kind, EVIL), TIMES)
    assert "<script" not in drawn
    assert kind == "stat" or "&lt;script&gt;" in drawn


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_kind_of_panel_can_be_drawn(path):
    kinds = {one["type"] for one in panels(load(path))}
    assert kinds - set(drawing.DRAWN) <= {"annolist"}


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        pytest.param(0.954, {"unit": "percentunit", "decimals": 1}, "95.4%", id="share"),
        pytest.param(0.0123, {"unit": "s"}, "12.3 ms", id="short"),
        pytest.param(7200.0, {"unit": "s"}, "2.0 h", id="long"),
        pytest.param(3.0, {"unit": "suffix: steps/s"}, "3 steps/s", id="own-unit"),
        pytest.param(5 * 2**20, {"unit": "bytes"}, "5 MiB", id="bytes"),
        pytest.param(1.0, {"mappings": [{"options": {"1": {"text": "up"}}}]}, "up", id="called"),
        pytest.param(float("nan"), {}, "", id="nothing"),
    ],
)
def test_a_value_is_said_in_its_unit(value, field, said):
    assert text_of(value, field) == said


def test_a_colour_is_that_of_the_highest_threshold_reached():
    steps = [{"value": None, "color": "green"}, {"value": 5, "color": "red"}]
    field = {"thresholds": {"steps": steps}}
    assert colour_of(4.9, field) != colour_of(5.0, field) == colour_of(50.0, field)


def test_a_prometheus_that_is_not_there_is_one_line(tmp_path, capsys):
    where = ["--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path)]
    assert main(["sketch", *where]) == 1
    assert capsys.readouterr().err.count("\n") == 1
