"""The machine of all experiments, with an experiment of two cases and no fleet."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from experiments import harness, pages
from experiments.__main__ import EXPERIMENTS
from experiments.harness import Experiment, FleetError, Runner


@dataclass(frozen=True)
class Toss:
    name: str
    number: int

    @property
    def key(self):
        return f"{self.name}#{self.number}"


class Tossing(Runner):
    def run(self, case):
        if case.name == "edge":
            raise FleetError("it stands on its edge")
        return {"key": case.key, "name": case.name, "verdict": "invalid" * (case.number == 1)}


class Coin(Experiment):
    name, what, runs = "coin", "A coin is tossed.", 2

    def cases(self, args):
        names = ("head", "tail", "edge")
        return [Toss(name, number) for number in range(args.runs) for name in names]

    def runner(self, args):
        return Tossing(args.folder)

    def verdict(self, row):
        return row["verdict"]

    def told(self, row):
        return row["key"]

    def page(self, out):
        return pages.table(["key"], [[row["key"]] for row in harness.read(out)])


@pytest.fixture
def toss(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTKEEPER_COMMAND", "make coin")
    monkeypatch.setattr(harness.signal, "signal", lambda *_: None)
    files = [
        "--out", str(tmp_path / "coin.jsonl"), "--page", str(tmp_path / "coin.md"),
        "--folder", str(tmp_path),
    ]  # fmt: skip
    return lambda *words: Coin().main([*files, *words])


def keys(tmp_path):
    return [json.loads(line)["key"] for line in (tmp_path / "coin.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("lanes", ["1", "2"])
def test_every_row_is_kept_and_one_that_is_not_made_fails_the_command(toss, tmp_path, lanes):
    assert toss("--lanes", lanes) == 1
    assert sorted(keys(tmp_path)) == ["head#0", "head#1", "tail#0", "tail#1"]
    assert "| tail#1 |" in (tmp_path / "coin.md").read_text()
    row = harness.read(tmp_path / "coin.jsonl")[0]
    assert row["command"] == "make coin"
    assert {"machine", "load", "code"} <= row.keys()


def test_results_that_are_there_are_gone_on_with_only_when_asked_to(toss, tmp_path, capsys):
    assert toss("--only", "head", "--runs", "1") == 0
    with pytest.raises(SystemExit):
        toss()
    assert "--resume" in capsys.readouterr().err
    toss("--resume", "--only", "head|tail", "--runs", "2")
    assert keys(tmp_path) == ["head#0", "tail#0", "head#1", "tail#1"]
    toss("--resume", "--only", "head")  # an invalid one is made again, and the latest counts
    assert keys(tmp_path)[4:] == ["head#1"]
    toss("--resume", "--only", "tail", "--again", "")
    assert keys(tmp_path)[5:] == ["tail#0", "tail#1"]
    assert len(harness.read(tmp_path / "coin.jsonl")) == 4


def test_cases_are_listed_and_nothing_is_run(toss, tmp_path, capsys):
    assert toss("--list", "--only", "tail") == 0
    assert capsys.readouterr().out == "tail#0\ntail#1\n"
    assert not (tmp_path / "coin.jsonl").exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_its_cases_and_the_page_in_evidence_is_that_of_its_rows(name):
    experiment = EXPERIMENTS[name]()
    args = experiment.parser().parse_args([])
    cases = list(experiment.cases(args))
    assert len({case.key for case in cases}) == len(cases) > 0
    assert all(experiment.described(case) for case in cases)
    assert args.page.read_text() == experiment.page(args.out)
    for row in harness.read(args.out):
        experiment.verdict(row)
        assert experiment.told(row)


@pytest.mark.parametrize(("share", "value"), [(0.5, 3), (0.95, 5), (0.0, 1)])
def test_a_quantile_is_one_of_the_values(share, value):
    assert pages.quantile([1, 2, 3, 4, 5], share) == value


def test_numbers_are_a_median_with_the_largest_and_with_how_many_there_are_not():
    assert pages.numbers([1.0, None]) == "1.0, 1 never"
    assert pages.numbers([1.0, 2.0, 4.0]) == "2.0 (4.0)"
    assert pages.numbers([None]) == "-, 1 never"
    assert pages.numbers([]) == pages.middle([]) == pages.seconds(None) == "-"
