"""Training programs: the collectives that each kind of parallelism calls, and in which order.

The order, groups and names follow what DDP, Megatron, FSDP2 and expert parallelism record (for
Megatron see the real dumps in ../shared/data/flight_recorder_nccl). Sizes are small numbers: only
their agreement matters.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.corpus.calls import (
    Batch,
    Call,
    Compute,
    Join,
    Programs,
    Step,
    Sync,
    Team,
    all_to_all,
    gather_base,
    point_to_point,
    same_size,
    scatter_base,
)


@dataclass(frozen=True)
class Shape:
    """What kind of job."""

    layout: str
    steps: int = 6
    ragged: bool = False
    """Some ranks call a few collectives of a group of their own: record ids differ."""
    batched: bool = False
    """Pipeline stages use batch_isend_irecv."""
    uniform: bool = False
    """All gradient buckets have one size: a slipped sequence is not noticed at once."""
    barrier: bool = False
    sync_every: int = 1
    """Steps between two `loss.item()`: how far the CPU may run ahead."""
    slow: float = 1.0
    """Factor on all computing, against the recorder's clockwork of 100 ms."""


class _Teams:
    def __init__(self, world: int) -> None:
        self.all: list[Team] = []
        self.add("default_pg", range(world))

    def add(self, desc: str, members: range | list[int]) -> Team:
        team = Team(len(self.all), str(len(self.all)), desc, tuple(members))
        self.all.append(team)
        return team

    def of(self, desc: str, rank: int) -> Team:
        return next(t for t in self.all if t.desc == desc and rank in t.members)


def _ddp(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    loss = teams.add("METRICS", range(8))
    buckets = [4096] * 4 if shape.uniform else [4096, 12288, 8192, 2560]

    def step(rank: int) -> list[Step]:
        out: list[Step] = [Compute(2.0)]
        out.append(same_size("broadcast", 0, (64,), "Float", "ddp.py:88 sync_buffers", root=0))
        out.append(Compute(6.0))
        for size in buckets:
            out.append(Compute(3.0))
            call = same_size("all_reduce", 0, (size,), "Float", "ddp.py:140 reduce_bucket")
            out.append(_later(call))
        out += [Join(0), Compute(1.5)]
        out.append(same_size("all_reduce", loss.index, (1,), "Float", "train.py:52 log_loss"))
        if shape.barrier:
            out.append(
                Call("barrier", 0, (), (), "Float", "train.py:54 step", ("barrier", 0, None))
            )
        return out

    return step


def _later(call: Call) -> Call:
    return Call(**{**call.__dict__, "waited": False})


def _tensor_layers(tp: Team, layers: int, *, backward: bool) -> list[Step]:
    n, where = len(tp.members), "backward" if backward else "forward"
    out: list[Step] = []
    for _ in range(layers):
        out.append(gather_base(tp.index, n, (256, 1, 64), "BFloat16", f"layers.py:301 {where}"))
        out.append(Compute(1.6 if backward else 0.9))
        out.append(scatter_base(tp.index, n, (256, 1, 64), "BFloat16", f"layers.py:339 {where}"))
        out.append(Compute(0.4))
    return out


def _tp_dp(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    for start in range(0, 16, 4):
        teams.add("TENSOR_MODEL_PARALLEL_GROUP", range(start, start + 4))
    for tp in range(4):
        teams.add("DATA_PARALLEL_GROUP", range(tp, 16, 4))
    parts = [1024, 1024] if shape.uniform else [1024, 3072]

    def step(rank: int) -> list[Step]:
        tp = teams.of("TENSOR_MODEL_PARALLEL_GROUP", rank)
        dp = teams.of("DATA_PARALLEL_GROUP", rank)
        out = [Compute(1.0), *_tensor_layers(tp, 2, backward=False)]
        for size in parts:
            out += _tensor_layers(tp, 1, backward=True)
            grads = scatter_base(dp.index, 4, (size,), "Float", "grads.py:77 reduce_grads")
            out.append(_later(grads))
        out += [Join(dp.index), Compute(0.5)]
        out.append(same_size("all_reduce", 0, (1,), "Float", "clip.py:31 grad_norm"))
        out.append(Compute(0.5))
        for size in parts:
            out.append(gather_base(dp.index, 4, (size,), "BFloat16", "optimizer.py:210 step"))
        return out

    return step


def _pipeline(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    """TP 2, PP 2, DP 4: rank = stage * 8 + replica * 2 + tensor rank."""
    for start in range(0, 16, 2):
        teams.add("TENSOR_MODEL_PARALLEL_GROUP", range(start, start + 2))
    for rank in range(8):
        teams.add("PIPELINE_MODEL_PARALLEL_GROUP", [rank, rank + 8])
    for stage in (0, 8):
        for tp in (0, 1):
            teams.add("DATA_PARALLEL_GROUP", range(stage + tp, stage + 8, 2))

    def step(rank: int) -> list[Step]:
        tp = teams.of("TENSOR_MODEL_PARALLEL_GROUP", rank)
        pp = teams.of("PIPELINE_MODEL_PARALLEL_GROUP", rank)
        dp = teams.of("DATA_PARALLEL_GROUP", rank)
        first = rank < 8
        other = rank + 8 if first else rank - 8
        out = _microbatches(shape, tp, pp, first=first, other=other)
        for size in (2048, 2048) if shape.uniform else (2048, 5120):
            grads = same_size("all_reduce", dp.index, (size,), "Float", "grads.py:77 reduce_grads")
            out.append(_later(grads))
        out += [Join(dp.index), Compute(0.5)]
        out.append(same_size("all_reduce", 0, (1,), "Float", "clip.py:31 grad_norm"))
        return out

    return step


def _microbatches(shape: Shape, tp: Team, pp: Team, *, first: bool, other: int) -> list[Step]:
    """Three forward, three backward; `other` is the global rank of the other stage's peer."""
    out: list[Step] = []
    for _ in range(3):
        if not first:
            out.append(_transfer(shape, pp.index, 0, "forward", sends=False))
        out += _tensor_layers(tp, 1, backward=False)
        if first:
            out.append(_transfer(shape, pp.index, 1, "forward", sends=True))
    # As in Megatron: the way back has a communicator of its own, else stages would deadlock.
    back = (pp.index, 1 if first else 0) if shape.batched else (0, other)
    for _ in range(3):
        if first:
            out.append(_transfer(shape, *back, "backward", sends=False))
        out += _tensor_layers(tp, 1, backward=True)
        if not first:
            out.append(_transfer(shape, *back, "backward", sends=True))
    return out


def _transfer(shape: Shape, team: int, peer: int, way: str, *, sends: bool) -> Step:
    line = f"p2p.py:{165 if sends else 142} {'send' if sends else 'recv'}_{way}"
    call = point_to_point(team, peer, (256, 1, 64), "BFloat16", line, sends=sends)
    return Batch((call,)) if shape.batched else (_later(call) if sends else call)


def _fsdp(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    return _sharded(teams, shard=[list(range(8))], replicate=[], uniform=shape.uniform)


def _hsdp(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    shard = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    replicate = [[rank, rank + 4, rank + 8] for rank in range(4)]
    return _sharded(teams, shard=shard, replicate=replicate, uniform=shape.uniform)


def _sharded(
    teams: _Teams, *, shard: list[list[int]], replicate: list[list[int]], uniform: bool
) -> Callable[[int], list[Step]]:
    for members in shard:
        teams.add("mesh_shard", members)
    for members in replicate:
        teams.add("mesh_replicate", members)
    layers = [512, 512, 512] if uniform else [512, 768, 1024]

    def step(rank: int) -> list[Step]:
        mine = teams.of("mesh_shard", rank)
        n, at = len(mine.members), mine.index
        # Prefetch: the next layer's parameters are asked for before this layer computes.
        asks = [_later(gather_base(at, n, (size,), "BFloat16", "fsdp.py:410 unshard"))
                for size in layers]  # fmt: skip
        out: list[Step] = [asks[0]]
        for ahead in [*asks[1:], None]:
            out += [Join(at), *([ahead] if ahead else []), Compute(1.2)]
        for size in reversed(layers):
            out.append(gather_base(at, n, (size,), "BFloat16", "fsdp.py:455 pre_backward"))
            out.append(Compute(2.0))
            out.append(_later(scatter_base(at, n, (size,), "Float", "fsdp.py:520 reduce_grads")))
            if replicate:
                other = teams.of("mesh_replicate", rank).index
                out.append(Join(at))
                grads = same_size("all_reduce", other, (size,), "Float", "fsdp.py:533 reduce_grads")
                out.append(_later(grads))
        if replicate:
            out.append(Join(teams.of("mesh_replicate", rank).index))
        out += [Join(at), Compute(0.6)]
        out.append(same_size("all_reduce", 0, (1,), "Float", "clip.py:31 grad_norm"))
        return out

    return step


def _experts(shape: Shape, teams: _Teams, rng: random.Random) -> Callable[[int], list[Step]]:
    for start in (0, 4, 8):
        teams.add("EXPERT_MODEL_PARALLEL_GROUP", range(start, start + 4))
    for rank in range(4):
        teams.add("EXPERT_DATA_PARALLEL_GROUP", [rank, rank + 4, rank + 8])
    parts = [1536, 1536] if shape.uniform else [1536, 640]

    def step(rank: int) -> list[Step]:
        ep = teams.of("EXPERT_MODEL_PARALLEL_GROUP", rank)
        dp = teams.of("EXPERT_DATA_PARALLEL_GROUP", rank)
        out: list[Step] = [Compute(0.8)]
        for turn, way in enumerate(["forward", "forward", "backward", "backward"]):
            rows = routed(ep, rank, turn)
            out.append(all_to_all(ep.index, rows, 64, "BFloat16", f"moe.py:210 dispatch_{way}"))
            out.append(Compute(1.5))
            out.append(
                all_to_all(ep.index, rows[::-1], 64, "BFloat16", f"moe.py:233 combine_{way}")
            )
            out.append(Compute(0.7))
        for size in parts:
            grads = same_size("all_reduce", dp.index, (size,), "Float", "grads.py:77 reduce_grads")
            out.append(_later(grads))
        dense = same_size("all_reduce", 0, (4096,), "Float", "grads.py:95 reduce_dense")
        out += [dense, Join(dp.index), Compute(0.5)]
        out.append(same_size("all_reduce", 0, (1,), "Float", "clip.py:31 grad_norm"))
        return out

    def routed(ep: Team, rank: int, turn: int) -> tuple[int, int]:
        """Tokens in and out of a rank; over the group the sums are equal."""
        at = ep.members.index(rank)
        shifts = [[-9, 4, 12, -7], [3, -3, 5, -5], [0, 8, -8, 0]][turn % 3]
        return 128, 128 + shifts[at]

    return step


def _slower(step: Step, factor: float) -> Step:
    return Compute(step.ms * factor) if isinstance(step, Compute) else step


_LAYOUTS: dict[str, tuple[int, Callable[..., Callable[[int], list[Step]]]]] = {
    "DP": (8, _ddp),
    "TPxDP": (16, _tp_dp),
    "TPxPPxDP": (16, _pipeline),
    "FSDP": (8, _fsdp),
    "HSDP": (12, _hsdp),
    "EP": (12, _experts),
}


def programs(shape: Shape, rng: random.Random) -> Programs:
    """What each rank of such a job does in `shape.steps` steps."""
    world, layout = _LAYOUTS[shape.layout]
    teams = _Teams(world)
    step = layout(shape, teams, rng)
    extra = teams.add("LOGGING", range(world // 2)) if shape.ragged else None
    job = Programs(tuple(teams.all))
    for rank in range(world):
        steps: list[Step] = []
        if extra is not None and rank in extra.members:
            hello = same_size("all_reduce", extra.index, (7,), "Long", "log.py:19 hello")
            steps += [hello] * 5
        starts = []
        for number in range(1, shape.steps + 1):
            starts.append(len(steps))
            steps += [_slower(item, shape.slow) for item in step(rank)]
            if number % shape.sync_every == 0:
                steps.append(Sync())
        job.steps[rank], job.starts[rank] = steps, starts
    return job
