"""Fingerprints of weights: equal for equal bits, different for one bit that differs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lightkeeper.worker_server.rank import fingerprint
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.worker_server.pages import NOW

pytestmark = pytest.mark.integration  # torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.complex64]


@pytest.fixture
def prints(reporter, reader, monkeypatch):
    """Takes one, whatever it costs, and gives what arrived."""
    monkeypatch.setattr(fingerprint, "_SHARE", 1e9)

    def take(tensors, step=10, **how):
        reporter.begin_step(step)
        reporter.fingerprint(tensors, step, **{"every": 10, **how})
        return reader.step_state(NOW).prints

    return take


def value(lane):
    return lane.rows[-1][1]


def tensor(count, dtype, seed=1):
    bits = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(seed))  # fmt: skip
    return bits.view(dtype)


def flip(of, word):
    of.view(torch.uint8)[word] ^= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 1000, 40_001])
def test_one_bit_changes_it_and_the_same_bit_again_brings_it_back(prints, dtype, count):
    weights = [tensor(5, torch.float32), tensor(count, dtype, seed=2)]
    first = value(prints(weights))
    for place in (0, weights[1].numel() * dtype.itemsize // 2, -1):
        flip(weights[1], place)
        assert value(prints(weights)) != first
        flip(weights[1], place)
        assert value(prints(weights)) == first


def test_a_nan_has_bits_like_any_number(prints):
    weights = [torch.full((100,), float("nan"))]
    assert value(prints(weights)) == value(prints(weights))


def test_the_place_in_a_buffer_does_not_matter(prints):
    buffer = torch.randn(1001)
    aside = buffer[1:]
    assert value(prints([aside])) == value(prints([aside.clone()]))


def test_what_is_not_contiguous_counts_as_it_is_read(prints):
    square = torch.randn(20, 20)
    assert value(prints([square.t()])) == value(prints([square.t().contiguous()]))


def test_two_tensors_that_change_places_are_different(prints):
    first, other = torch.randn(50), torch.randn(50)
    assert value(prints([first, other])) != value(prints([other, first]))


def test_a_module_its_parameters_and_a_mapping_are_the_same(prints):
    module = torch.nn.Linear(8, 4)
    ways = [module, module.parameters(), dict(module.named_parameters()), module.named_parameters()]
    assert len({value(prints(way)) for way in ways}) == 1


def test_of_a_sharded_tensor_the_local_part_counts(prints):
    whole = torch.randn(10)
    sharded = SimpleNamespace(to_local=lambda: whole[:5])
    assert value(prints([sharded])) == value(prints([whole[:5]]))


def test_they_are_taken_at_multiples_of_every_and_the_last_ones_are_kept(prints):
    weights = [torch.randn(10)]
    for step in range(1, 60):
        lane = prints(weights, step)
    assert [step for step, *_ in lane.rows] == [30, 40, 50]


def test_early_on_they_are_taken_at_powers_of_two(prints):
    weights = [torch.randn(10)]
    assert [prints(weights, step).rows[-1][0] for step in range(1, 11)] == [
        1, 2, 2, 4, 4, 4, 4, 8, 8, 10,
    ]  # fmt: skip


def test_every_zero_takes_none(prints):
    assert prints([torch.randn(10)], every=0) is None


def test_replicas_that_differ_by_design_are_not_looked_at(prints):
    assert prints([torch.randn(10)], replicas_equal=False) is None


def test_only_the_same_shapes_shard_and_setting_share_a_lane(prints):
    base = prints([torch.zeros(10)]).lane
    assert prints([torch.ones(10)]).lane == base
    others = [
        prints([torch.zeros(11)]), prints([torch.zeros(10).double()]),
        prints([torch.zeros(10)], shard=3), prints([torch.zeros(10)], every=5),
    ]  # fmt: skip
    assert base not in {lane.lane for lane in others}


def test_a_large_shard_goes_in_pieces_and_every_bit_is_in_one(prints, monkeypatch):
    monkeypatch.setattr(fingerprint, "CPU_PART_BYTES", 1000)
    weights = [torch.randn(300), torch.randn(301), torch.randn(7)]  # 2.4 KB: three pieces
    steps = iter(range(10, 10_000, 10))

    def round_of_three():
        rows = [prints(weights, next(steps)).rows[-1] for _ in range(3)]
        return {part: value for _, value, part in rows}

    clean = round_of_three()
    assert sorted(clean) == [0, 1, 2]
    for place in (0, 2, 600, 1199):
        flip(weights[0], place)
        values = round_of_three()
        assert sum(values[part] != clean[part] for part in clean) == 1
        flip(weights[0], place)
    assert round_of_three() == clean


def test_whoever_takes_every_second_one_comes_by_all_pieces(monkeypatch):
    monkeypatch.setattr(fingerprint, "CPU_PART_BYTES", 1000)
    weights = [torch.arange(1000.0)]  # 4 KB: five pieces, an odd number
    for stride in (1, 2, 4, 8):
        pieces = [
            piece for turn in range(5)
            for piece in fingerprint._pieces(
                torch, weights, *fingerprint._part(weights, stride * turn)
            )
        ]  # fmt: skip
        covered = torch.stack(pieces).sum()
        assert covered == weights[0].view(torch.int64).sum()


def test_a_step_that_comes_again_begins_another_history(prints):
    weights = [torch.randn(10)]
    for step in (10, 20, 30):
        prints(weights, step)
    lane = prints(weights, 20)
    assert (lane.lineage, [step for step, *_ in lane.rows]) == (1, [20])


def test_a_heal_throws_away_what_was_taken_before_it(prints, reporter, page):
    weights = [torch.randn(10)]
    assert prints(weights, 10).lineage == 0
    page.add_time(1, 0.5)  # a checkpoint was loaded
    assert prints(weights, 11) is None
    lane = prints(weights, 20)
    assert (lane.lineage, [step for step, *_ in lane.rows]) == (1, [20])


def test_in_the_attempt_that_heals_none_is_taken(prints, reporter):
    manager = SimpleNamespace(
        _quorum_id=1, _participating_replica_world_size=2, _healing=True, _errored=None,
        _logger=SimpleNamespace(_replica_id="rg_1:x"), _step=10,
    )  # fmt: skip
    reporter.observe_manager(manager)
    assert prints([torch.randn(10)], 10) is None
    reporter.end_step(10)
    manager._healing = False
    assert prints([torch.randn(10)], 20).lineage == 1


def test_what_cannot_be_hashed_ends_in_one_warning(prints):
    with pytest.warns(RuntimeWarning, match="takes no fingerprints"):
        assert prints(["no tensor"]) is None
    assert prints([torch.randn(10)]) is None


def test_a_fingerprint_that_costs_too_much_is_taken_half_as_often(prints, monkeypatch):
    clock = iter(range(0, 10**6, 5))  # each takes 5 s of CPU
    monkeypatch.setattr(fingerprint, "_SHARE", 1e-3)
    monkeypatch.setattr(fingerprint, "time", SimpleNamespace(
        thread_time=lambda: next(clock), monotonic=lambda: 0.0))  # fmt: skip
    for step in range(10, 100, 10):
        lane = prints([torch.randn(10)], step)
    # after those of 10 and 20 the distance is 20, after 40 it is 40, after 80 it is 80
    assert [step for step, *_ in lane.rows] == [20, 40, 80]


class LateTensor:
    """Stands for a number on its way back from an accelerator."""

    def __init__(self, number):
        self.number = number

    def item(self):
        return self.number


def test_a_value_that_has_not_arrived_is_published_by_a_later_call(prints, monkeypatch):
    arrived = []
    monkeypatch.setattr(
        fingerprint, "_sent_home",
        lambda _, total: (
            LateTensor(int(total)), SimpleNamespace(query=lambda: bool(arrived))
        ),
    )  # fmt: skip
    weights = [torch.randn(10)]
    assert prints(weights, 10) is None
    assert prints(weights, 11) is None
    arrived.append(True)
    assert [step for step, *_ in prints(weights, 12).rows] == [10]


@pytest.mark.parametrize(("text", "taken"), [("5", True), ("0", False), ("often", False)])
def test_the_environment_sets_how_often(page, reader, text, taken):
    loop = Reporter(page).loop
    if text == "often":
        with pytest.warns(RuntimeWarning, match="is no number"):
            taker = fingerprint.Fingerprinter(loop, {fingerprint.ENVIRONMENT: text})
    else:
        taker = fingerprint.Fingerprinter(loop, {fingerprint.ENVIRONMENT: text})
    loop.begin(5)
    taker.take([torch.randn(3)], 5, None, 0)
    assert (reader.step_state(NOW).prints is not None) is taken
