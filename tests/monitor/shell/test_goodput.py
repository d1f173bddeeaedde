"""`lightkeeper goodput` as a user meets it, and the committed page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.cli import main
from tests.monitor.shell.process import ROOT
from tests.monitor.shell.refusal import assert_refused

CASES = Path(__file__).parent / "cases"


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def body(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["goodput", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_published_case_stands_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", "--case", "ft-hsdp"]) == 0
    assert lines(capsys.readouterr().out) == lines((CASES / "goodput-ft-hsdp.txt").read_text())


def test_a_job_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ranks", "16384", "--groups", "8", "--mtbf", "3h"]
    assert main(["goodput", *words]) == 0
    assert lines(capsys.readouterr().out) == lines((CASES / "goodput-job.txt").read_text())


def test_what_is_said_goes_into_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    said = body(
        ["--ranks", "64", "--group-size", "8", "--rank-mtbf", "64h", "--mix", "50:25:25",
         "--slowdown", "3", "--slow-lasts", "1h", "--evict", "2", "--requorum", "3", "--restart",
         "1m", "--heal", "4", "--first-step", "5", "--job-restart", "6m", "--step", "1", "--spares",
         "1", "--repair", "2h", "--detect-hang", "7", "--detect-slow", "30m", "--false-evictions",
         "2"],
        capsys,
    )  # fmt: skip
    assert said["job"] == {"ranks": 64, "groups": 8, "mtbf_s": 3600.0, "rank_mtbf_h": 64.0}
    assert said["mix"] == {
        "stop": 0.5, "hang": 0.25, "slow": 0.25, "slowdown": 3.0, "slow_lasts_s": 3600.0,
    }  # fmt: skip
    assert said["times"] == {
        "evict_s": 2.0, "requorum_s": 3.0, "restart_s": 60.0, "heal_s": 4.0, "first_step_s": 5.0,
        "job_restart_s": 360.0, "step_s": 1.0,
    }  # fmt: skip
    assert said["spares"] == {"hosts": 1, "repair_s": 7200.0}
    kept, false = said["ways"][3:]
    assert (kept["name"], kept["detect_hang_s"], kept["slow_goes_after_s"]) == (
        "lightkeeper", 7.0, 1800.0,
    )  # fmt: skip
    assert (false["name"], false["false_per_day"]) == ("+ 2 false a day", 2.0)


def test_a_slow_rank_may_be_never_found(capsys: pytest.CaptureFixture[str]) -> None:
    said = body(["--detect-slow", "never"], capsys)
    assert said["ways"][3]["slow_goes_after_s"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--ranks", "1023"], "1023 ranks cannot be 10 groups of one size"),
        (["--ranks", "0"], "ranks is 0, expected 2 to 1e+07"),
        (["--groups", "0"], "groups is 0, expected 2 to 98304"),
        (["--ranks", "4096", "--group-size", "1000"], "4096 ranks are no groups of 1000"),
        (["--mtbf", "0"], "mtbf_s is 0, expected 1 to 1e+09"),
        (["--slowdown", "nan"], "slowdown is nan, expected 1 to 1000"),
        (["--false-evictions", "-1"], "false evictions a day is -1, expected 0 to 1e+06"),
        (["--spares", "-1"], "spares is -1, expected 0 to 1e+07"),
        (["--case", "ft-hsdp", "--sweep", "1:2"], "--case and --sweep are two questions"),
        (["--sweep", "1000:2000", "--ranks", "5"], "a sweep has many sizes: give --rank-mtbf"),
        (["--sweep", "5:2"], "the sweep is 5:2, expected two sizes in order, 10 to 10000000"),
    ],
)
def test_nonsense_is_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["goodput", *words], line, capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--mtbf", "soon"], "'soon' is no time, such as 90, 90s, 18m, 2h or 1d"),
        (["--heal", "-1"], "'-1' is no time"),
        (["--mix", "1:2"], "'1:2' is not STOP:HANG:SLOW, such as 83:12:5"),
        (["--mix", "0:0:0"], "'0:0:0' is not STOP:HANG:SLOW"),
        (["--sweep", "9"], "'9' is not A:B, such as 1000:100000"),
        (["--mtbf", "1h", "--rank-mtbf", "1h"], "not allowed with"),
    ],
)
def test_options_that_do_not_parse_are_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["goodput", *words])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


# -- what is committed ----------------------------------------------------------------------------


def test_the_figures_on_the_page_are_what_the_command_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs/goodput.md").read_text()
    for one in body(["--sweep", "1000:100000"], capsys)["sweep"]:
        shares = " | ".join(f"{way['poisson'] * 100:.2f}" for way in one["ways"])
        assert f"| {one['job']['ranks']:,} | " in page
        assert shares in page
    for row in body(["--case", "ft-hsdp"], capsys)["case"]:
        shares = f"| {row['linear'] * 100:.1f} % | {row['poisson'] * 100:.1f} % |"
        assert shares in page
