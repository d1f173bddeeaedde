"""What a fleet of real ranks agrees on, and what it says of itself."""

import pytest

from lightkeeper.trainer import faults
from tests.deep import only_explored
from tests.trainer.fleet import Forks, lighthouse, shared, unequal, until

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OFTEN = ("--log-every", "1", "--fingerprint-every", "1")


def test_a_group_that_joins_late_heals_and_then_equals_the_others_bit_for_bit(tmp_path):
    fleet = Forks(tmp_path, *OFTEN, "--step-time", "0.05").add("rg_0", 1).add("rg_1", 1)
    with lighthouse(fleet):
        fleet.start("rg_0.0")
        until(lambda: len(fleet.events("fingerprint")) >= 3, "3 steps of rg_0 alone")
        fleet.start("rg_1.0")
        until(
            lambda: (
                len(fleet.events("fingerprint", "rg_1.0")) >= 10
                and len(fleet.events("fingerprint", "rg_0.0")) >= 20
            ),
            "10 steps of both",
        )
        prints = fleet.prints()
        losses = [event["loss"] for event in fleet.events("step", "rg_0.0")]
        late = [event["loss"] for event in fleet.events("step", "rg_1.0")]
        joined_at = fleet.events("fingerprint", "rg_1.0")[0]["step"]

    assert joined_at > 3
    assert shared(prints) >= 9  # the newest may be there from one of them only
    assert unequal(prints) == []
    assert late[0] is None  # of the weights that it lost by the heal: nobody's loss
    assert None not in late[1:]
    assert losses[0] > 5.0
    assert min(losses[-3:]) < losses[0] - 1.0


def test_two_ranks_in_a_group_tell_every_phase_hold_half_the_model_and_end_with_zero(tmp_path):
    fleet = Forks(tmp_path, "--steps", "3", "--fingerprint-every", "3").add("rg_0", 2)
    with lighthouse(fleet):
        fleet.start_all()
        codes = fleet.exit_codes()
        calls = fleet.told("rg_0.1")
        started = fleet.events("started")
        prints = fleet.prints()

    assert codes == [0, 0]
    assert [2 * event["held"] for event in started] == [event["parameters"] for event in started]
    assert {piece: list(hashes) for piece, hashes in prints[3].items()} == {
        0: ["rg_0.0"], 1: ["rg_0.1"],
    }  # fmt: skip
    a_step = [
        "communication", "data", "forward", "backward", "communication", "optimizer",
    ]  # fmt: skip
    assert calls == [
        "init", ("manager", 0),
        ("begin", 0), *a_step, ("end", 0, True, 64),
        ("begin", 1), *a_step, ("end", 1, True, 64),
        ("begin", 2), *a_step, ("end", 2, True, 64),
        "closed",
    ]  # fmt: skip


def test_two_ranks_learn_what_is_evaluated_on_both_and_one_rank_reads_what_they_wrote(tmp_path):
    disk = ("--checkpoint-dir", str(tmp_path / "disk"), "--checkpoint-every", "4")
    same = (*OFTEN, "--evaluate-every", "2", "--evaluate-batches", "2", *disk)
    both = Forks(tmp_path / "both", *same, "--steps", "4").add("rg_0", 2)
    again = Forks(tmp_path / "again", *same, "--steps", "8", "--resume").add("rg_0", 1)
    with lighthouse(both, again):
        both.start_all()
        assert both.exit_codes() == [0, 0]
        again.start_all()
        assert again.exit_codes() == [0]
        measured, unseen = both.losses("evaluation"), again.losses("evaluation")

    assert sorted(measured) == [2, 4]
    assert sorted(again.losses("step")) == [5, 6, 7, 8]
    assert max(unseen.values()) < measured[2]


@only_explored  # make test: tests/experiments/test_killing.py
def test_a_sharded_group_that_was_killed_heals(tmp_path):
    often = (*OFTEN, "--step-time", "0.05", "--timeout", "20")
    fleet = Forks(tmp_path, *often)
    fleet.add("rg_0", 2).add("rg_1", 2).add("rg_1", 2, life=1)
    with lighthouse(fleet):
        fleet.start("rg_0.0", "rg_0.1", "rg_1.0", "rg_1.1")
        until(lambda: shared(fleet.prints()) >= 6, "3 steps of both")
        fleet.kill("rg_1.0", "rg_1.1")
        killed_at = max(fleet.prints())
        until(lambda: max(fleet.prints()) > killed_at + 3, "rg_0 goes on alone")
        fleet.start("rg_1.0", "rg_1.1", life=1)
        alone_until = max(fleet.prints())
        until(
            lambda: shared({s: p for s, p in fleet.prints().items() if s > alone_until}) >= 12,
            "6 more steps of both",
        )
        prints = fleet.prints()
        steps = [event["step"] for event in fleet.events("step", "rg_0.0")]

    assert unequal(prints) == []
    assert steps == sorted(steps)  # what was committed stays committed


def test_groups_hold_equal_weights_and_resume_from_disk_as_if_they_had_not_stopped(tmp_path):
    disk = ("--checkpoint-dir", str(tmp_path / "disk"), "--checkpoint-every", "2")
    both = (*OFTEN, "--min-replicas", "2", "--steps", "6", *disk)
    first = Forks(tmp_path / "first", *both).add("rg_0", 1).add("rg_1", 1)
    again = Forks(tmp_path / "again", *both, "--resume").add("rg_0", 1).add("rg_1", 1)
    with lighthouse(first, again):
        first.start_all()
        assert first.exit_codes() == [0, 0]
        kept = sorted(path.name for path in (tmp_path / "disk" / "rg_1").iterdir())
        for path in (tmp_path / "disk").glob("*/step-6"):  # as if it had ended in writing it
            (path / ".metadata").unlink()
        again.start_all()
        assert again.exit_codes() == [0, 0]
        whole, rest = first.prints(), again.prints()
        losses = [e["loss"] for e in first.events("step", "rg_0.0") if e["committed"]]

    assert sorted(whole) == [1, 2, 3, 4, 5, 6]
    assert {tuple(sorted(pieces)) for pieces in whole.values()} == {(0,)}
    assert shared(whole) == 6
    assert unequal(whole) == []
    assert losses[-1] < losses[0] - 1.0
    assert kept == ["step-4", "step-6"]
    assert sorted(rest) == [4, 5, 6]
    assert all(rest[step] == whole[step] for step in rest)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=only_explored)])
def test_a_rank_whose_loss_is_nan_says_so_itself_and_nobody_takes_it_in(tmp_path, size):
    fault_file = tmp_path / "faults.json"
    often = ("--step-time", "0.05", "--log-every", "1", "--timeout", "20", "--fault-file",
             str(fault_file), "--steps", "30")  # fmt: skip
    fleet = Forks(tmp_path, *often).add("rg_0", size).add("rg_1", size)
    ranks = [f"rg_{group}.{number}" for group in (0, 1) for number in range(size)]
    sick = ranks[-1]
    with lighthouse(fleet):
        fleet.start_all()
        until(
            lambda: sum(e["participants"] == 2 for e in fleet.events("step", sick)) >= 3,
            "3 steps together: who joins a sick group later gets its numbers",
        )
        faults.inject(fault_file, faults.PlannedFault("nan", "nan", sick))
        until(lambda: len(fleet.events("finished", "rg_0.0")) == 1, "the end of rg_0")
        sound = fleet.events("step", "rg_0.0")
        [marker] = faults.markers(fault_file)
        late = [e for e in fleet.events("step", sick) if e["time"] > marker.time]
        until(fleet.told_file("rg_0.0").exists, "what rg_0 told")
        calls = fleet.told("rg_0.0")

    together = [event for event in sound if event["participants"] == 2]
    assert all(event["loss"] is not None and event["committed"] for event in together)
    assert late
    assert not any(event["committed"] for event in late)
    assert [entry for entry in calls if entry[0] == "not finite"] == []
