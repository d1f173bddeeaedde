import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from lightkeeper.trainer import faults
from lightkeeper.trainer.faults import FaultError, FaultKind, PlannedFault, Variant
from lightkeeper.trainer.injector import ACTS, Injector, leave_out_last_micro_batch

pytestmark = pytest.mark.integration  # torch

# -- what is written ------------------------------------------------------------------------


def wanted(kind, step=None, *, rank="rg_1.0", **more):
    """A fault as a person writes it into the file."""
    return faults.parse_fault({"id": "one", "kind": kind, "rank": rank, "step": step, **more})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("stop", PlannedFault("one", FaultKind.STOP, "rg_1.0")),
        ("slow:2.5", PlannedFault("one", FaultKind.SLOW, "rg_1.0", factor=2.5)),
        ("mismatch:size", PlannedFault("one", FaultKind.MISMATCH, "rg_1.0", variant=Variant.SIZE)),
        ("hang:busy", PlannedFault("one", FaultKind.HANG, "rg_1.0", variant=Variant.BUSY)),
        ("hang:lock", PlannedFault("one", FaultKind.HANG, "rg_1.0", variant=Variant.LOCK)),
        ("pause:8.5", PlannedFault("one", FaultKind.PAUSE, "rg_1.0", seconds=8.5)),
        ("pause:gc", PlannedFault("one", FaultKind.PAUSE, "rg_1.0", variant=Variant.GC)),
    ],
)
def test_a_kind_may_carry_its_argument(kind, expected):
    assert wanted(kind) == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"kind": "burn"}, "unknown kind 'burn' (known: hang, gil, stop, crash, "
                     "segfault, abort, raise, slow, slow-data, slow-link, mismatch, nan, corrupt, "
                     "loss_spike, pause)", id="kind"),
        pytest.param({"rank": "rg_1"}, "not a rank name: 'rg_1' (expected GROUP.RANK, such as "
                     "rg_0.1)", id="rank"),
        pytest.param({"step": "soon"}, "Expected `int | null`, got `str` - at `$.step`", id="step"),
        pytest.param({"kind": "slow:x"}, "Expected `float`, got `str` - at `$.factor`",
                     id="factor"),
        pytest.param({"kind": "slow:1"}, "factor 1 is not above 1", id="factor-of-one"),
        pytest.param({"kind": "slow:nan"}, "factor nan is not above 1", id="factor-nan"),
        pytest.param({"kind": "stop:3"}, "stop knows no variant '3' (known: none)",
                     id="argument-of-none"),
        pytest.param({"kind": "hang:3"}, "hang knows no variant '3' (known: sleep, busy, lock, "
                     "file)", id="variant"),
        pytest.param({"phase": "lunch"}, "unknown phase 'lunch' (known: data, forward, backward, "
                     "communication, optimizer)", id="phase"),
        pytest.param({"kind": "slow:2", "phase": "forward"}, "slow takes no phase",
                     id="phase-of-none"),
        pytest.param({"kind": "pause:0"}, "seconds 0 is not in 0 to 3600", id="seconds"),
    ],
)  # fmt: skip
def test_a_wrong_fault_gives_one_line_that_names_the_mistake(changes, said):
    with pytest.raises(FaultError) as caught:
        faults.parse_fault({"id": "one", "kind": "hang", "rank": "rg_1.0", **changes})

    assert str(caught.value) == f"fault 'one': {said}"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("hang", id="text"),
        pytest.param({}, id="empty"),
        pytest.param({"id": "a", "kind": "hang"}, id="no-rank"),
        pytest.param({"id": "a/b", "kind": "hang", "rank": "g.0"}, id="id-leaves-the-folder"),
        pytest.param({"id": "..", "kind": "hang", "rank": "g.0"}, id="id-is-a-folder"),
        pytest.param({"id": "a", "kind": "hang", "rank": "g.0", "step": -1}, id="step-below-zero"),
        pytest.param({"id": "a", "kind": "hang", "rank": "g.0", "step": True}, id="step-is-a-bool"),
        pytest.param({"id": "a", "kind": "slow", "rank": "g.0", "factor": []}, id="factor-a-list"),
        pytest.param({"id": "a", "kind": "mismatch", "rank": "g.0", "variant": []}, id="variant"),
    ],
)
def test_bad_json_raises_a_fault_error_of_one_line(data):
    with pytest.raises(FaultError) as caught:
        faults.parse_fault(data)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_an_injected_fault_is_read_back_as_it_was(tmp_path, kind):
    file = tmp_path / "faults.json"
    fault = PlannedFault("one", kind, "rg_1.0", 3)

    faults.inject(file, fault)

    assert [faults.parse_fault(item) for item in json.loads(file.read_text())] == [fault]


# -- what happens in the rank ---------------------------------------------------------------


class Rank:
    """An injector whose acts are written down instead of done."""

    def __init__(self, folder, name="rg_1.0", *, host="host-1", world_size=1, planned=(), **more):
        self.file = folder / "faults.json"
        self.acted, self.said = [], []
        self.markers_when_acting = []
        if planned:
            faults.inject(self.file, *planned)
        self.injector = Injector(
            name,
            world_size=world_size,
            host=host,
            file=self.file,
            acts={kind: lambda _fault, kind=kind: self.act(kind) for kind in ACTS},
            say=self.said.append,
            clock=lambda: 1000.0,
            **more,
        )

    def act(self, kind):
        self.acted.append(kind)
        self.markers_when_acting.append(faults.markers(self.file))

    def poll(self, *steps):
        for step in steps:
            self.injector.poll(step)
        return self.acted


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.GIL, FaultKind.STOP, FaultKind.CRASH])
def test_a_fault_fires_at_its_step_and_its_marker_is_there_before_it_acts(tmp_path, kind):
    rank = Rank(tmp_path, planned=[PlannedFault("one", kind, "rg_1.0", 5)])

    assert rank.poll(3, 4) == []
    assert rank.poll(5) == [kind]
    (marker,) = rank.markers_when_acting[0]
    assert (marker.id, marker.kind, marker.rank) == ("one", kind, "rg_1.0")
    assert (marker.host, marker.step, marker.time) == ("host-1", 5, 1000.0)


def test_a_fault_waits_for_its_phase_within_the_step(tmp_path):
    rank = Rank(tmp_path, planned=[wanted("hang", 5, phase="backward")])
    rank.poll(5)
    rank.injector.strike("forward")
    assert rank.acted == []

    rank.injector.strike("backward")
    rank.injector.strike("backward")

    assert rank.acted == [FaultKind.HANG]
    assert [marker.phase for marker in faults.markers(rank.file)] == ["backward"]


def test_a_declared_pause_names_its_phase_to_the_keeper(tmp_path):
    named = []

    @contextmanager
    def declare(phase):
        named.append(phase)
        yield
        named.append("over")

    rank = Rank(tmp_path, planned=[wanted("pause:declared", 5)], declare=declare)
    rank.poll(5)

    assert (rank.acted, named) == ([FaultKind.PAUSE], ["compile", "over"])


def test_a_step_that_was_jumped_over_by_a_heal_does_not_lose_the_fault(tmp_path):
    assert Rank(tmp_path, planned=[wanted("hang", 5)]).poll(2, 9) == [FaultKind.HANG]


def test_a_fault_fires_once_even_after_a_restart(tmp_path):
    planned = [wanted("crash", 5)]

    assert Rank(tmp_path, planned=planned).poll(5, 6) == [FaultKind.CRASH]
    assert Rank(tmp_path, planned=planned).poll(5, 6) == []


def test_a_fault_hits_only_its_rank(tmp_path):
    assert Rank(tmp_path, "rg_2.0", planned=[wanted("hang")]).poll(1) == []


def test_a_fault_without_a_step_in_the_file_fires_at_the_next_step(tmp_path):
    rank = Rank(tmp_path)
    assert rank.poll(7) == []

    faults.inject(rank.file, PlannedFault("now", FaultKind.STOP, "rg_1.0"))

    assert rank.poll(8) == [FaultKind.STOP]
    assert [marker.step for marker in faults.markers(rank.file)] == [8]


def test_one_bad_fault_in_the_file_is_one_line_and_the_others_count(tmp_path):
    rank = Rank(tmp_path)
    bad = {"id": "bad", "kind": "burn", "rank": "rg_1.0"}
    rank.file.write_text(json.dumps([bad, {"id": "ok", "kind": "hang", "rank": "rg_1.0"}]))

    assert rank.poll(1, 2) == [FaultKind.HANG]
    kinds = ", ".join(FaultKind)
    assert rank.said == [
        f"rg_1.0: error: fault 'bad': unknown kind 'burn' (known: {kinds})",
        "rg_1.0: fault 'ok' (hang) fires at step 1",
    ]


def test_a_file_that_is_no_json_is_one_line_until_it_changes(tmp_path):
    rank = Rank(tmp_path)
    rank.file.write_text("{")

    assert rank.poll(1, 2, 3) == []
    assert len(rank.said) == 1
    assert rank.said[0].startswith(f"rg_1.0: error: fault file {rank.file}: ")


def test_a_removed_file_takes_its_faults_with_it(tmp_path):
    rank = Rank(tmp_path)
    faults.inject(rank.file, PlannedFault("late", FaultKind.HANG, "rg_1.0", 9))
    rank.poll(1)
    rank.file.unlink()

    assert rank.poll(9) == []


SLOW = [wanted("slow:3", 5)]


def test_slow_stays_until_the_process_ends(tmp_path):
    rank = Rank(tmp_path, planned=SLOW)
    factors = []
    for step in (4, 5, 6):
        rank.poll(step)
        factors.append(rank.injector.slowness(FaultKind.SLOW))

    assert factors == [1.0, 3.0, 3.0]


def test_slow_belongs_to_the_host_and_hits_whoever_comes_there_next(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)

    assert Rank(tmp_path, planned=SLOW).injector.slowness(FaultKind.SLOW) == 3.0
    assert Rank(tmp_path, "rg_7.0", planned=SLOW).injector.slowness(FaultKind.SLOW) == 3.0


def test_a_group_that_moved_to_another_host_is_fast_again_and_stays_so(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)
    moved = Rank(tmp_path, host="spare-1", planned=SLOW)
    moved.poll(5, 6)

    assert moved.injector.slowness(FaultKind.SLOW) == 1.0


def test_the_other_rank_of_a_slow_host_is_not_slow(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)

    assert Rank(tmp_path, "rg_1.1", planned=SLOW).injector.slowness(FaultKind.SLOW) == 1.0


def test_a_mismatch_is_handed_out_once_in_a_group_of_two(tmp_path):
    rank = Rank(tmp_path, world_size=2, planned=[wanted("mismatch:size", 5)])
    rank.poll(5)

    assert rank.injector.take(FaultKind.MISMATCH, Variant.ROOT) is None
    fault = rank.injector.take(FaultKind.MISMATCH, Variant.SIZE, Variant.OP)
    assert fault.how is Variant.SIZE
    assert rank.injector.take(FaultKind.MISMATCH) is None


@pytest.mark.parametrize(
    ("kind", "size", "refused"),
    [
        ("mismatch", 1, "a mismatch needs a replica group of at least 2 ranks"),
        ("mismatch:fewer", 2, "only a stage of a pipeline (--pipeline) has micro-batches to send"),
    ],
)
def test_a_mismatch_that_cannot_be_is_refused_in_log_and_marker(tmp_path, kind, size, refused):
    rank = Rank(tmp_path, world_size=size, planned=[wanted(kind, 5)])
    rank.poll(5, 6)

    assert rank.injector.take(FaultKind.MISMATCH) is None
    assert rank.said == [f"rg_1.0: error: fault 'one' refused: {refused}"]
    assert [marker.refused for marker in faults.markers(rank.file)] == [refused]


def test_a_stage_with_one_micro_batch_less_transfers_the_others():
    transfers = ["get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"]
    stage = SimpleNamespace(
        chunks=3, **{name: lambda chunk, name=name: [(name, chunk)] for name in transfers}
    )

    leave_out_last_micro_batch(stage)

    for name in transfers:
        assert [getattr(stage, name)(chunk) for chunk in range(3)] == [[(name, 0)], [(name, 1)], []]


def test_gradients_are_nan_until_the_process_ends_and_for_whoever_comes_to_that_host(tmp_path):
    planned = [wanted("nan", 5)]
    rank = Rank(tmp_path, planned=planned)
    rank.poll(4)
    assert not rank.injector.nan
    rank.poll(5, 6)

    assert rank.injector.nan
    assert Rank(tmp_path, planned=planned).injector.nan
    assert not Rank(tmp_path, host="spare-1", planned=planned).injector.nan


def test_a_bit_flips_once_and_no_restart_flips_it_again(tmp_path):
    planned = [wanted("corrupt", 5)]
    rank = Rank(tmp_path, planned=planned)
    rank.poll(5)
    again = Rank(tmp_path, planned=planned)
    again.poll(5)

    assert rank.injector.take(FaultKind.CORRUPT) == planned[0]
    assert rank.injector.take(FaultKind.CORRUPT) is None
    assert again.injector.take(FaultKind.CORRUPT) is None


def test_a_loss_spike_lasts_for_a_while(tmp_path):
    rank = Rank(tmp_path, planned=[wanted("loss_spike:10", 5)])
    assert rank.injector.take_spike() == 1.0
    rank.poll(5)
    factors = [rank.injector.take_spike() for _ in range(faults.SPIKE_STEPS + 2)]

    assert factors == [10.0] * faults.SPIKE_STEPS + [1.0, 1.0]
