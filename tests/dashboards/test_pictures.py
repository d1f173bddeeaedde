"""What draws the dashboards without a Grafana: what it needs, and what it can draw."""

import re
import sys

from tests.dashboards.boards import PATHS, ROOT, load, panels
from tests.dashboards.pictures import __main__ as pictures
from tests.dashboards.scenes import LASTS_S, MOMENTS, jobs

PAGE = (ROOT / "tests" / "dashboards" / "pictures" / "page.jsx").read_text()


def test_what_is_missing_is_said_with_what_brings_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["pictures"])
    assert pictures.main() == 2
    assert capsys.readouterr().err.splitlines() == [
        "npm is not installed: apt-get install npm",
        "chromium is not installed: apt-get install chromium",
        "prometheus is not installed: apt-get install prometheus",
        "promtool is not installed: apt-get install prometheus",
    ]


def test_it_draws_every_kind_of_panel_and_knows_every_property():
    kinds = {panel["type"] for path in PATHS for panel in panels(load(path))}
    drawn = re.findall(r"'?([\w-]+)'?: [A-Z]\w+[,} ]", PAGE.partition("const KINDS = ")[2])
    assert kinds <= set(drawn)
    used = {
        entry["id"].removeprefix("custom.")
        for path in PATHS
        for panel in panels(load(path))
        for override in panel["fieldConfig"]["overrides"]
        for entry in override["properties"]
    }
    assert {name for name in used if f"'{name}'" not in PAGE} == set()


def test_every_picture_is_of_a_dashboard_a_job_and_a_moment_that_there_are():
    boards = {path.stem for path in PATHS}
    shots = list(pictures.shots())
    assert {shot.board for shot in shots} == boards
    assert {shot.job for shot in shots} <= {job.name for job in jobs(large=False)}
    assert all(MOMENTS[shot.moment] <= LASTS_S for shot in shots)
    assert len({shot.name for shot in shots}) == len(shots)
