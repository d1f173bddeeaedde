import json
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lightkeeper.trainer import faults, injector
from lightkeeper.trainer.faults import FaultError, PlannedFault
from lightkeeper.trainer.injector import Injector, WorkStretcher

pytestmark = pytest.mark.integration  # torch

KINDS = ", ".join(faults.KINDS)

# -- what is written ------------------------------------------------------------------------


def wanted(kind, step=None, *, rank="rg_1.0", **more):
    """A fault as a person writes it into the file."""
    return faults.parse_fault({"id": "one", "kind": kind, "rank": rank, "step": step, **more})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"kind": "burn"}, f"unknown kind 'burn' (known: {KINDS})",
                     id="kind"),
        pytest.param({"kind": "slow:2"}, f"unknown kind 'slow:2' (known: {KINDS})",
                     id="kind-that-is-no-function"),
        pytest.param({"rank": "rg_1"}, "not a rank name: 'rg_1' (expected GROUP.RANK, such as "
                     "rg_0.1)", id="rank"),
        pytest.param({"step": "soon"}, "Expected `int | null`, got `str` - at `$.step`", id="step"),
        pytest.param({"factor": "x"}, "Expected `float`, got `str` - at `$.factor`", id="factor"),
        pytest.param({"variant": "busy"}, "unknown keys: variant", id="key-that-is-gone"),
        pytest.param({"factor": 1}, "factor 1 is not above 1", id="factor-of-one"),
        pytest.param({"phase": "lunch"}, "unknown phase 'lunch' (known: data, forward, backward, "
                     "communication, optimizer)", id="phase"),
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
        pytest.param(7, id="number"),
        pytest.param({}, id="empty"),
        pytest.param({"id": "a", "kind": "hang"}, id="no-rank"),
        pytest.param({"id": "a/b", "kind": "hang", "rank": "g.0"}, id="id-leaves-the-folder"),
        pytest.param({"id": "..", "kind": "hang", "rank": "g.0"}, id="id-is-a-folder"),
        pytest.param({"id": "a", "kind": "hang", "rank": "g.0", "step": -1}, id="step-below-zero"),
        pytest.param({"id": "a", "kind": "hang", "rank": "g.0", "step": True}, id="step-is-a-bool"),
        pytest.param({"id": "a", "kind": "slow", "rank": "g.0", "factor": []}, id="factor-a-list"),
        pytest.param({"id": "a", "kind": [], "rank": "g.0"}, id="kind-a-list"),
    ],
)
def test_bad_json_raises_a_fault_error_of_one_line(data):
    with pytest.raises(FaultError) as caught:
        faults.parse_fault(data)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [*faults.KINDS, "a.b:c"])
def test_an_injected_fault_is_read_back_as_it_was(tmp_path, kind):
    file = tmp_path / "faults.json"
    fault = PlannedFault("one", kind, "rg_1.0", 3)

    faults.inject(file, fault)

    assert [faults.parse_fault(item) for item in json.loads(file.read_text())] == [fault]


# -- what happens in the rank ---------------------------------------------------------------


class Rank:
    """An injector whose acts are written down instead of done."""

    def __init__(self, folder, name="rg_1.0", *, host="host-1", planned=(), does=None):
        self.file = folder / "faults.json"
        self.acted, self.said = [], []
        self.markers_when_acting = []
        if planned:
            faults.inject(self.file, *planned)
        self.does = does
        self.injector = Injector(
            name, host, self.file, self.act, say=self.said.append, clock=lambda: 1000.0
        )
        self.injector.inherit()

    def act(self, fault):
        self.acted.append(fault.kind)
        self.markers_when_acting.append(faults.markers(self.file))
        if self.does:
            self.does(fault)

    def poll(self, *steps):
        for step in steps:
            self.injector.poll(step)
        return self.acted


@pytest.mark.parametrize("kind", ["hang", "gil", "stop", "crash"])
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

    assert rank.acted == ["hang"]
    assert [marker.phase for marker in faults.markers(rank.file)] == ["backward"]


def test_a_step_that_was_jumped_over_by_a_heal_does_not_lose_the_fault(tmp_path):
    assert Rank(tmp_path, planned=[wanted("hang", 5)]).poll(2, 9) == ["hang"]


def test_a_fault_fires_once_even_after_a_restart(tmp_path):
    planned = [wanted("crash", 5)]

    assert Rank(tmp_path, planned=planned).poll(5, 6) == ["crash"]
    assert Rank(tmp_path, planned=planned).poll(5, 6) == []


def test_a_fault_hits_only_its_rank(tmp_path):
    assert Rank(tmp_path, "rg_2.0", planned=[wanted("hang")]).poll(1) == []


def test_a_fault_without_a_step_in_the_file_fires_at_the_next_step(tmp_path):
    rank = Rank(tmp_path)
    assert rank.poll(7) == []

    faults.inject(rank.file, PlannedFault("now", "stop", "rg_1.0"))

    assert rank.poll(8) == ["stop"]
    assert [marker.step for marker in faults.markers(rank.file)] == [8]


def test_one_bad_fault_in_the_file_is_one_line_and_the_others_count(tmp_path):
    rank = Rank(tmp_path)
    bad = {"id": "bad", "kind": "burn", "rank": "rg_1.0"}
    rank.file.write_text(json.dumps([bad, {"id": "ok", "kind": "hang", "rank": "rg_1.0"}]))

    assert rank.poll(1, 2) == ["hang"]
    assert rank.said == [
        f"rg_1.0: error: fault 'bad': unknown kind 'burn' (known: {KINDS})",
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
    faults.inject(rank.file, PlannedFault("late", "hang", "rg_1.0", 9))
    rank.poll(1)
    rank.file.unlink()

    assert rank.poll(9) == []


SLOW = [wanted("slow", 5, factor=3)]


def test_slow_belongs_to_the_host_and_hits_whoever_comes_there_next(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)
    next_one, other = Rank(tmp_path, planned=SLOW), Rank(tmp_path, "rg_7.0", planned=SLOW)

    assert (next_one.acted, other.acted) == (["slow"], ["slow"])
    assert next_one.said == ["rg_1.0: slow on host-1, as fault 'one' left it"]
    assert next_one.poll(5, 6) == ["slow"]


def test_a_group_that_moved_to_another_host_is_fast_again_and_stays_so(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)

    assert Rank(tmp_path, host="spare-1", planned=SLOW).poll(5, 6) == []


def test_the_other_rank_of_a_slow_host_is_not_slow(tmp_path):
    Rank(tmp_path, planned=SLOW).poll(5)

    assert Rank(tmp_path, "rg_1.1", planned=SLOW).acted == []


@pytest.mark.parametrize("kind", ["corrupt", "crash", "mismatch"])
def test_what_happened_once_does_not_happen_again_on_that_host(tmp_path, kind):
    Rank(tmp_path, planned=[wanted(kind, 5)]).poll(5)

    assert Rank(tmp_path, planned=[wanted(kind, 5)]).acted == []


def test_a_fault_that_cannot_be_is_refused_in_the_log(tmp_path):
    lone = SimpleNamespace(intra=None)
    rank = Rank(tmp_path, planned=[wanted("mismatch", 5)],
                does=lambda fault: injector.act(lone, fault))  # fmt: skip
    rank.poll(5, 6)

    assert rank.said[1:] == [
        "rg_1.0: error: fault 'one' refused: a mismatch needs a replica group of at least 2 ranks"
    ]


# -- what it does to the rank ---------------------------------------------------------------------


def test_a_slow_rank_keeps_its_largest_factor():
    rank = SimpleNamespace(pace=WorkStretcher())
    for factor in (3.0, 2.0):
        injector.act(rank, wanted("slow", factor=factor))

    assert rank.pace.slowness == 3.0


def small():
    network = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    return SimpleNamespace(network=network, optimizer=optimizer)


def test_gradients_are_nan_but_not_what_an_evaluation_measures():
    rank = small()
    injector.act(rank, wanted("nan"))

    rank.network(torch.ones(2)).sum().backward()

    assert rank.network.weight.grad.isnan().all()
    with torch.no_grad():
        assert rank.network(torch.ones(2)).isfinite().all()


def test_one_bit_flips_at_the_next_commit_alone():
    rank = small()
    rank.network(torch.ones(2)).sum().backward()
    before = rank.network.weight.detach().clone()
    injector.act(rank, wanted("corrupt"))

    rank.optimizer.step()
    after = rank.network.weight.detach().clone()
    rank.optimizer.step()

    assert (before != after).sum() == 1
    assert torch.equal(after, rank.network.weight)


CALLS = {
    "mismatch": [("all_gather", 4), ("all_reduce", 1)],
    "mismatch:size": [("all_reduce", 2), ("all_reduce", 1)],
    "experiments.campaign.acts:order": [("all_reduce", 1), ("all_reduce", 4)],
    "experiments.campaign.acts:extra": [("all_reduce", 4), ("all_reduce", 4), ("all_reduce", 1)],
    "experiments.campaign.acts:skip": [("all_reduce", 1)],
    "experiments.campaign.acts:receive": [("recv", 1), ("all_reduce", 1)],
}


@pytest.mark.parametrize(("kind", "expected"), CALLS.items())
def test_one_collective_differs_and_those_after_it_do_not(monkeypatch, kind, expected):
    called = []

    def note(name):
        return lambda *tensors, **_: called.append((name, tensors[-1].numel()))

    for name in ("all_reduce", "all_gather", "recv"):
        monkeypatch.setattr(dist, name, note(name))
    monkeypatch.setattr(dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(dist, "get_rank", lambda _: 0)
    injector.act(SimpleNamespace(intra="two ranks"), wanted(kind))

    dist.all_reduce(torch.zeros(4), group="norms")
    dist.all_reduce(torch.zeros(()), group="metrics")
    assert called == expected

    dist.all_reduce(torch.zeros(4), group="norms")
    assert called[len(expected) :] == [("all_reduce", 4)]


def test_the_next_gradients_alone_are_summed_as_integers(monkeypatch):
    summed = []

    def note(**given):
        summed.append((given["output"].dtype, given["input"].dtype))

    monkeypatch.setattr(dist, "reduce_scatter_single", note)
    injector.act(SimpleNamespace(intra="two ranks"), wanted("experiments.campaign.acts:dtype"))
    for _ in range(2):
        dist.reduce_scatter_single(output=torch.zeros(2), input=torch.zeros(4), op="sum")
    assert summed == [(torch.int32, torch.int32), (torch.float32, torch.float32)]
