"""The demo's command line: sensible defaults, one-line refusals."""

from __future__ import annotations

import pytest

from lightkeeper.trainer.demo import demo_options


def test_one_rank_a_group_gets_three_groups_and_no_mismatch() -> None:
    options = demo_options([])
    assert (options.groups, options.ranks_per_group) == (3, 1)
    assert options.faults == ["gil", "slow"]
    assert options.min_replicas == 2


def test_two_ranks_a_group_get_two_groups_and_a_mismatch_too() -> None:
    options = demo_options(["--ranks-per-group", "2"])
    assert (options.groups, options.faults) == (2, ["gil", "slow", "mismatch"])
    assert options.min_replicas == 1


def test_faults_keep_the_order_in_which_they_were_asked_for() -> None:
    assert demo_options(["--fault", "stop", "--fault", "crash"]).faults == ["stop", "crash"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--groups", "1"], "'1' is not a number from 2 to 8"),
        (["--groups", "many"], "'many' is not a number from 2 to 8"),
        (["--ranks-per-group", "0"], "'0' is not a number from 1 to 4"),
        (["--step-time", "nan"], "'nan' is not a number from 0 to 5"),
        (["--fault", "flood"], "invalid choice: 'flood'"),
        (["--fault", "corrupt", "--groups", "2"], "who of two is right cannot be told"),
        (["--fault", "mismatch"], "needs a collective inside the group"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_option_gets_one_line_and_status_two(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        demo_options(arguments)
    error = capsys.readouterr().err
    assert refusal.value.code == 2
    assert complaint in error
    assert error.count("\n") == 1
