"""What the dashboards say of simulated fleets: their own queries, asked of a real Prometheus."""

from __future__ import annotations

import re
import shutil
from collections import Counter

import pytest

from lightkeeper.dashboards import committed
from lightkeeper.dashboards.selectors import GROUP_STATE, JOB_STATE, KEEPER_STATE, PROCESS
from tests.dashboards.pictures.answers import Asked, Chosen
from tests.dashboards.scenes import EPOCH_S, Job, make_world, serving
from tests.monitor.fleet import SimFleet, at, gil, stop
from tests.monitor.fleet.plain import PlainJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        None in (shutil.which("prometheus"), shutil.which("promtool")), reason="needs Prometheus"
    ),
]

HERE, THERE = ({"cluster": "c", "namespace": name} for name in ("here", "there"))
HANG_S, LASTS_S = 60, 240


def world():
    """`stuck` hangs, and a pause holds its eviction back; `lucky` evicts who hangs; `plain` is DDP;
    of `gone` the monitor has ended."""
    return (
        Job("stuck", 1, SimFleet(3, 2, [at(HANG_S, stop("rg_2.1"))], across=True), THERE,
            paused_s=(0.0, 1e9)),
        Job("lucky", 2, SimFleet(2, 1, [at(HANG_S, gil("rg_0.0"))], across=True), HERE),
        Job("plain", 3, PlainJob(2), HERE),
        Job("gone", 4, SimFleet(2, 1), HERE, ends_s=60),
    )  # fmt: skip


@pytest.fixture(scope="module")
def prom(tmp_path_factory):
    data = tmp_path_factory.mktemp("world") / "data"
    make_world(data, world(), LASTS_S)
    with serving(data) as server:
        yield server


BOARDS = {board["uid"].removeprefix("lightkeeper-"): board for board in committed.read_boards()}


class Seen:
    """One dashboard with one job chosen, at one moment."""

    def __init__(self, prom, board, job, at_s=LASTS_S, range_s=200):
        (place,) = (each.place for each in world() if each.name == job)
        chosen = Chosen(EPOCH_S + at_s, range_s, {"job": job, **place})
        self.asked = Asked(BOARDS[board], prom, chosen)

    def answers(self, title):
        (panel,) = (p for p in committed.panels_of(self.asked.board) if p["title"] == title)
        return self.asked.panel(panel)

    def tile(self, title):
        """Value of each series of a tile, by its name."""
        named = {}
        for answer in self.answers(title):
            for row in answer["rows"]:
                name = re.sub(r"{{(\w+)}}", lambda m, row=row: row["labels"].get(m[1], ""),
                              answer["legend"])  # fmt: skip
                named[name] = float(row["points"][-1][1])
        return named

    def column(self, title, query, *labels):
        """Of a table: value of one query, by these labels."""
        (answer,) = (each for each in self.answers(title) if each["refId"] == query)
        return {
            tuple(row["labels"].get(label, "") for label in labels): float(row["points"][-1][1])
            for row in answer["rows"]
        }


def words(values, numbers):
    return {key: values[f"{number:.0f}"][0] for key, number in numbers.items()}


def test_every_job_has_a_row_and_none_hides_another(prom):
    for chosen in ("lucky", "stuck"):
        fleet = Seen(prom, "fleet", chosen)
        assert words(JOB_STATE, fleet.column("Jobs", "A", "job_id")) == {
            ("stuck",): "▲ not training", ("lucky",): "● training", ("plain",): "○ watching",
            ("gone",): "✕ monitor not seen",
        }  # fmt: skip
        assert words(KEEPER_STATE, fleet.column("Jobs", "F", "job_id")) == {
            ("stuck",): "■ paused", ("lucky",): "● acts", ("plain",): "○ no Lighthouse",
            ("gone",): "✕ not seen",
        }  # fmt: skip
        who = ("job_id", "replica_group", "rank", "host")
        assert set(fleet.column("Jobs", "D", *who)) == {("stuck", "rg_2", "1", "host-rg_2")}
        assert set(fleet.column("Jobs", "E", "job_id", "guard")) == {("stuck", "paused")}


def test_a_chosen_job_is_shown_alone(prom):
    for name, board in BOARDS.items():
        asked = Seen(prom, name, "lucky").asked
        for panel in committed.panels_of(board):
            if panel["title"] in {"Jobs", "Alerts"}:
                continue
            for answer in asked.panel(panel):
                labels = str([row["labels"] for row in answer["rows"]])
                for other in ("stuck", "rg_2", "'job'", "10.0.1.1", "10.0.3.1"):
                    assert other not in labels, (name, panel["title"])


def test_at_night_the_first_row_says_whose_turn_it_is(prom):
    fleet = Seen(prom, "fleet", "stuck")
    (state,) = fleet.tile("Training").values()
    assert JOB_STATE[f"{state:.0f}"] == ("▲ not training", "red")
    assert fleet.tile("Held back by") == {"paused": 1}
    ages = fleet.tile("Since the last commit")
    assert ages["last commit"] == pytest.approx(LASTS_S - HANG_S, abs=3)
    assert ages["a commit usually takes"] == pytest.approx(0.32, abs=0.1)
    row = ("kind", "state", "replica_group", "rank", "host", "did")
    assert set(fleet.column("Open incidents", "A", *row)) == {
        ("not_entered", "firing", "rg_2", "1", "host-rg_2", "paused")
    }


def test_now_is_now_whatever_time_is_shown(prom):
    short, long = (Seen(prom, "fleet", "stuck", range_s=span) for span in (60, 86_400))
    for title in ("Training", "Since the last commit", "Held back by", "Goodput"):
        assert short.tile(title) == long.tile(title)


def test_nobody_is_well_where_nobody_looks(prom):
    fleet = Seen(prom, "fleet", "gone")
    assert fleet.tile("Training") == fleet.tile("Since the last commit") == {}
    assert fleet.tile("Held back by") == {"monitor not seen": -1}
    (state,) = fleet.tile("The keeper").values()
    assert KEEPER_STATE[f"{state:.0f}"] == ("✕ not seen", "red")
    assert set(fleet.column("Open incidents", "A", "state")) == {("monitor not seen",)}


def test_a_plain_job_has_neither_a_red_tile_nor_an_alert(prom):
    fleet = Seen(prom, "fleet", "plain")
    assert words(JOB_STATE, fleet.tile("Training")) == {"__auto": "○ watching"}
    assert fleet.tile("Held back by") == {"no Lighthouse": -1}
    assert words(KEEPER_STATE, fleet.tile("The keeper")) == {"__auto": "○ no Lighthouse"}
    fired = prom.api("series", **{"match[]": "ALERTS", "start": f"{EPOCH_S}",
                                  "end": f"{EPOCH_S + LASTS_S}"})  # fmt: skip
    firing = {
        (alert["alertname"], alert.get("instance", alert.get("job_id")))
        for alert in fired
        if alert["alertstate"] == "firing"
    }
    assert firing == {
        ("LightkeeperTrainingStandsStill", "stuck"),
        ("LightkeeperMonitorDown", "10.0.4.1:8470"),
    }


def test_one_eviction_is_one_bar_and_one_mark(prom):
    lucky = Seen(prom, "incidents", "lucky")
    assert lucky.column("Evictions", "A", "kind", "outcome") == {("not_entered", "gone"): 1}
    marks = Counter(mark["name"] for mark in lucky.asked.annotations())
    assert marks["Evictions"] == 1


def test_the_culprit_does_not_look_like_its_victims(prom):
    rank = Seen(prom, "rank", "stuck")
    title, who = "Ranks, the worst first", ("replica_group", "rank")
    culprit = ("rg_2", "1")
    others = [("rg_2", "0"), *((f"rg_{n}", rank) for n in (0, 1) for rank in ("0", "1"))]
    assert set(rank.column(title, "A", *who, "role")) == {(*culprit, "culprit")}
    assert words(GROUP_STATE, rank.column(title, "B", *who)) == {
        culprit: "▲ stalled", **dict.fromkeys(others, "◐ waiting"),
    }  # fmt: skip
    assert words(PROCESS, rank.column(title, "C", *who)) == {
        culprit: "■ stopped by a signal", **dict.fromkeys(others, "● lives"),
    }  # fmt: skip
    phases = {row[:2]: row[2] for row in rank.column(title, "D", *who, "phase")}
    assert {phases[who] for who in others if who[0] != "rg_2"} == {"communication"}
    assert phases[culprit] == "backward"
    behind = rank.column(title, "E", *who)
    assert {name for name, count in behind.items() if count} == {culprit, ("rg_2", "0")}


def test_the_worst_group_is_the_first_band(prom):
    (answer,) = Seen(prom, "groups", "stuck").answers("State of each group")
    groups = [row["labels"]["replica_group"] for row in answer["rows"]]
    assert groups == ["rg_2", "rg_0", "rg_1"]


def test_each_rank_has_one_row_among_the_slowest(prom):
    slow = Seen(prom, "stragglers", "lucky")
    for query in "ABC":
        rows = slow.column("Slowest ranks now", query, "replica_group", "rank", "__name__")
        assert set(rows) == {("rg_0", "0", ""), ("rg_1", "0", "")}


def test_a_healthy_job_has_a_goodput_near_one_and_no_more_time_than_ranks(prom):
    fleet = Seen(prom, "fleet", "lucky", at_s=HANG_S - 5, range_s=55)
    assert fleet.tile("Goodput")["5 min"] == pytest.approx(1.0, abs=0.05)
    totals = Counter()
    for answer in fleet.answers("Where ranks' time goes (ranks)"):
        for row in answer["rows"]:
            for at_s, value in row["points"]:
                totals[at_s] += float(value)
    assert totals
    assert max(totals.values()) <= 2.2


def test_shares_of_phases_make_one_whole_at_most(prom):
    rank = Seen(prom, "rank", "lucky")
    totals = Counter()
    (answer,) = rank.answers("Phases")
    for row in answer["rows"]:
        for at_s, value in row["points"]:
            totals[at_s] += float(value)
    assert totals
    assert max(totals.values()) <= 1 + 1e-9
