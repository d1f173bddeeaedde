"""The page stays small whatever the job, tells the worst first, and reads as by the library."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.metric import new_page
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.metrics import Bounds, ViewCollector
from lightkeeper.worker_server.http_server import metrics_page
from tests.changed import replace
from tests.metrics_doc.measure import registry_of, series_of, view_of
from tests.monitor.commands.parsing import monitor_options
from tests.monitor.samples import incident, seen
from tests.monitor.samples import view as small_view

pytestmark = pytest.mark.integration
"""The large view takes seconds to make."""
STEP = 'lightkeeper_group_step{replica_group="rg_0"}'


@pytest.fixture(scope="module")
def large() -> View:
    """10,000 ranks in 1,250 groups; one works longer, one is dead, one is accused."""
    view = view_of(10_000, tick_s=0.4)  # a step
    tempos = {
        **view.tempos, RankName("rg_900.3"): Tempo(0.9, 0.8, 0.1),
        RankName("rg_901.0"): Tempo(0.9, 0.2, 0.7),
    }  # fmt: skip
    health = {**view.result.rank_health, RankName("rg_902.5"): RankHealth.DEAD}
    accused = replace(incident(), culprits=(RankName("rg_903.1"),), groups=(GroupName("rg_903"),))
    result = replace(view.result, rank_health=health)
    return replace(view, tempos=tempos, result=result, incidents=(accused,))


def told(view: View, bounds: Bounds, name: str) -> set[str]:
    """Ranks, or groups, that have a series of this metric."""
    text = generate_latest(registry_of(view, bounds)).decode()
    return {
        ".".join(filter(None, (sample.labels["replica_group"], sample.labels.get("rank"))))
        for family in families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_few_ranks_of_10000_have_series_of_their_own_and_the_worst_are_among_them(large):
    ranks = told(large, Bounds(ranks=100), "lightkeeper_rank_busy_seconds")
    assert len(ranks) == 100
    assert {"rg_900.3", "rg_902.5", "rg_903.1"} <= ranks
    assert ranks == told(large, Bounds(ranks=100), "lightkeeper_rank_wait_seconds")


def test_few_groups_of_1250_have_series_of_their_own_the_sick_and_accused_first(large):
    for name in ("group_step", "group_state", "group_busy_seconds", "group_in_quorum"):
        groups = told(large, Bounds(groups=10), f"lightkeeper_{name}")
        assert len(groups) == 10, name
        assert {"rg_902", "rg_903"} <= groups, name


def test_nought_means_none_and_aggregates_stay(large):
    page, _ = metrics_page(registry_of(large, Bounds(0, 0)), "")
    text = page.decode()
    names = {line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"}
    by_rank = {name for name in names if name.startswith("lightkeeper_rank_")}
    assert by_rank == {"lightkeeper_rank_suspect"}
    assert not any('replica_group="rg_1"' in line for line in text.splitlines())
    assert 'lightkeeper_ranks{health="healthy"} 9999.0' in text
    assert 'lightkeeper_fleet_busy_seconds{stat="max"} 0.8' in text
    assert series_of(page) < 200


def test_the_page_of_10000_ranks_is_as_large_as_the_docs_say(large):
    groups, ranks = Bounds().groups, Bounds().ranks
    page, _ = metrics_page(registry_of(large, Bounds()), "")
    assert series_of(page) <= 17 * groups + 2 * ranks + 1000


def test_defaults_tell_everybody_of_a_small_job():
    view = view_of(64)
    assert len(told(view, Bounds(), "lightkeeper_rank_busy_seconds")) == 64
    assert len(told(view, Bounds(), "lightkeeper_group_state")) == 8


def test_two_scrapes_of_one_tick_cost_one_and_the_next_tick_is_told_anew():
    shown = [small_view(seen("rg_0", step=10))]
    made = new_page()
    made.register(ViewCollector(lambda: shown[0]))

    def step() -> str:
        page, _ = metrics_page(made, "")
        return next(line for line in page.decode().splitlines() if line.startswith(STEP))

    first = step()
    assert step() == first == f"{STEP} 10.0"
    later = small_view(seen("rg_0", step=11))
    shown[0] = replace(later, snapshot=replace(later.snapshot, now_s=1001.0, tick=2))
    assert step() == f"{STEP} 11.0"


def test_a_scrape_waits_for_the_end_of_a_tick_only_when_there_is_something_to_make():
    waited, shown = [], [small_view(seen("rg_0", step=10))]

    def wait() -> None:
        waited.append(1)
        later = small_view(seen("rg_0", step=11))  # the tick that it waited for is over
        shown[0] = replace(later, snapshot=replace(later.snapshot, now_s=1001.0, tick=2))

    made = new_page()
    made.register(ViewCollector(lambda: shown[0], None, wait))
    for _ in range(3):
        page, _ = metrics_page(made, "")
        assert f"{STEP} 11.0" in page.decode()
    assert waited == [1]


# -- the switches ----------------------------------------------------------------------------------


def options(*more: str):
    return monitor_options("--store", "x.db", *more)


def test_the_switches_bound_the_page():
    assert options().bounds == Bounds(4096, 1024)
    assert options("--rank-series", "0", "--group-series", "7").bounds == Bounds(0, 7)
    with pytest.raises(CommandError, match="--rank-series is -1, expected 0 to 1e"):
        options("--rank-series", "-1")


# -- the format -----------------------------------------------------------------------------------

HOSTILE = 'quo"te \\ back\nline é'


@pytest.fixture
def hostile() -> View:
    tempos = {RankName(f"{HOSTILE}.0"): Tempo(1e-9, 1e22, float("inf"))}
    return small_view(
        seen(HOSTILE), seen("rg_1", 1), seen("}x 1", 2), tempos=tempos, tokens={HOSTILE: 10**17}
    )


@pytest.mark.parametrize(
    ("accept", "parse"),
    [
        pytest.param("", families, id="text"),
        pytest.param("application/openmetrics-text; version=1.0.0", openmetrics, id="openmetrics"),
    ],
)
def test_a_scraper_reads_any_name_back(hostile, accept, parse):
    page, content_type = metrics_page(registry_of(hostile, Bounds()), accept)
    assert content_type.startswith(accept.partition(";")[0] or "text/plain")
    tokens = [
        (sample.labels, sample.value)
        for family in parse(page.decode())
        for sample in family.samples
        if sample.name == "lightkeeper_group_tokens_total"
    ]
    assert tokens == [({"replica_group": HOSTILE}, 1e17)]
