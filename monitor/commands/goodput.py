"""`lightkeeper goodput`: what faults cost a job's training time."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.table import Table

from monitor.commands.command import CommandError, F, as_json, command, gathered, option
from monitor.commands.offline import composed, say
from monitor.model.config import ConfigError, KeeperConfig
from monitor.offline.goodput import (
    DAY_S,
    FT_HSDP,
    GROUPS,
    HANG_S,
    MEASURED_STEP_S,
    MIX,
    RANK_MTBF_S,
    RIVAL,
    SHORT_STALL_FACTOR,
    TIMES,
    TIMES_SAY,
    TORCHFT_LOST_S,
    Detection,
    Handling,
    JobSize,
    Mix,
    RecoveryTimes,
    Response,
    Scenario,
    ScenarioError,
    detection,
    eviction_cost_s,
    ft_hsdp,
    linear,
    poisson,
    toll,
    ways,
)

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}


class Duration(click.ParamType[float]):
    """Seconds: `90`, `90s`, `18m`, `2h`, `1d`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        words = str(value).strip().lower()
        unit = _UNITS_S.get(words[-1:])
        try:
            number = float(words if unit is None else words[:-1])
        except ValueError:
            number = math.nan
        if not (number >= 0.0 and math.isfinite(number)):
            self.fail(f"{value!r} is no time, such as 90, 90s, 18m, 2h or 1d", param, ctx)
        return number * (unit or 1.0)


class Shares(click.ParamType[tuple[float, ...]]):
    """Three shares that add up to 1, from numbers in any unit."""

    name = "shares"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            parts = [float(word) for word in value.split(":")]
        except ValueError:
            parts = []
        total = sum(parts)
        if len(parts) != 3 or min(parts) < 0.0 or not 0.0 < total < math.inf:
            self.fail(f"{value!r} is not STOP:HANG:SLOW, such as 83:12:5", param, ctx)
        return tuple(number / total for number in parts)


class Span(click.ParamType[tuple[int, int]]):
    """Two whole numbers."""

    name = "span"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        first, _, last = value.partition(":")
        if not (first.isdecimal() and last.isdecimal()):
            self.fail(f"{value!r} is not A:B, such as 1000:100000", param, ctx)
        return int(first), int(last)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the options say of faults and of how they are handled; times in seconds."""

    groups: int | None
    mtbf: float | None
    rank_mtbf: float | None
    mix: tuple[float, float, float]
    slowdown: float
    slow_lasts: float
    false_evictions: float
    detect_hang: float | None
    stall_factor: float | None
    give_up: float

    def of(self, ranks: int, groups: int, times: RecoveryTimes) -> list[Scenario]:
        """The ways to run a job of this size."""
        of_rank_s = RANK_MTBF_S if self.rank_mtbf is None else self.rank_mtbf
        mtbf_s = of_rank_s / max(1, ranks) if self.mtbf is None else self.mtbf
        mix = Mix(*self.mix, self.slowdown, self.slow_lasts)
        nobody = Handling("", Response(None), Response(None), Response(None))
        plain = Scenario(JobSize(ranks, groups, mtbf_s), mix, times, nobody)
        return ways(plain, self._detections(times.step_s), self.give_up, self.false_evictions)

    def _detections(self, step_s: float) -> list[tuple[str, Detection]]:
        usual = KeeperConfig()
        if self.detect_hang is not None:
            long = detection(step_s, self.slowdown, usual)
            return [("lightkeeper", long._replace(hang_s=self.detect_hang))]
        short = detection(MEASURED_STEP_S, self.slowdown, usual)
        factor = usual.stall_factor if self.stall_factor is None else self.stall_factor
        long = detection(step_s, self.slowdown, replace(usual, stall_factor=factor))
        steps = f"lightkeeper, {step_s:g} s steps"
        if long == short:
            return [("lightkeeper", short)]
        rows = [("lightkeeper, as measured", short), (steps, long)]
        if self.stall_factor is None:
            soon = detection(step_s, self.slowdown, replace(usual, stall_factor=SHORT_STALL_FACTOR))
            rows.append((f"{steps}, stall_factor {SHORT_STALL_FACTOR:g}", soon))
        return rows


_time: Final = functools.partial(option, type=Duration(), metavar="TIME")


def _times(called: F) -> F:
    """An option for each of the times after a decision."""
    for name, about in reversed(TIMES_SAY.items()):
        flag = f"--{name.removesuffix('_s').replace('_', '-')}"
        called = _time(flag, name, default=getattr(TIMES, name), help=about)(called)
    return called


@command()
@option("--case", type=click.Choice(("ft-hsdp",)), help="a published case")
@option("--sweep", type=Span(), metavar="A:B", help="1, 2, 5, 10 ... from A to B ranks")
@option("--ranks", type=int, metavar="N", help=f"GPUs (default: {FT_HSDP.ranks})")
@gathered(
    "assumed",
    Assumptions,
    option(
        "--groups", type=int, metavar="N", help="replica groups (12, with --ranks or --sweep 10)"
    ),
    _time("--mtbf", help="of the whole job: 90s, 3h, 1d"),
    _time(
        "--rank-mtbf",
        help=f"of one rank ({RANK_MTBF_S / 3600:.0f}h, FT-HSDP's; Llama 3's was 50676h)",
    ),
    option(
        "--mix",
        type=Shares(),
        default=f"{MIX.stop}:{MIX.hang}:{MIX.slow}",
        metavar="STOP:HANG:SLOW",
        help="kinds of faults, in any unit",
    ),
    option(
        "--slowdown",
        type=float,
        default=MIX.slowdown,
        metavar="X",
        help="times as long as a step takes with a slow rank",
    ),
    _time("--slow-lasts", default=MIX.slow_lasts_s, help="how long one stays slow by itself, mean"),
    option(
        "--false-evictions",
        type=float,
        default=1.0,
        metavar="PER_DAY",
        help="of healthy groups, for the last row",
    ),
    _time(
        "--detect-hang",
        help=f"lightkeeper's ({HANG_S:g}, measured with short steps, and by --step)",
    ),
    option(
        "--stall-factor",
        type=float,
        metavar="X",
        help="a hang is decided after so many step times (both 10, the monitor's default, and "
        f"{SHORT_STALL_FACTOR:g})",
    ),
    _time(
        "--give-up",
        default=TORCHFT_LOST_S,
        help="the survivors of a hang crash after it; TorchFT's defaults",
    ),
)
@_times
@as_json
def goodput(
    *,
    case: str | None,
    sweep: tuple[int, int] | None,
    ranks: int | None,
    assumed: Assumptions,
    as_json: bool,
    **times_s: float,
) -> None:
    """Estimate how much of the time a job trains.

    what it computes:
      Effective training time: committed steps, by the share of the groups in each, over what the
      same time gives without faults. By two closed forms, linear (as in FT-HSDP's paper: faults
      never meet) and Poisson (they do). It compares
        synchronous           any fault stops the whole job, which starts again
        FT, watchdog 10 min   groups fail alone; a hung one stands until its process group times out
        TorchFT's timeouts    groups fail alone; a hang takes the job after 125 s (measured)
        lightkeeper           a hung or slow group is evicted: as soon as was measured with steps of
                              0.2 s, and as soon as its thresholds allow with steps as yours
      docs/offline.md has the formulas, the source of each number, and what they are worth.

    examples:
      lightkeeper goodput --case ft-hsdp                      44 % -> 80 % at 98,304 GPUs
      lightkeeper goodput --ranks 16384 --groups 8 --mtbf 3h  my job
      lightkeeper goodput --sweep 1000:100000
      lightkeeper goodput --format json | jq '.ways[] | [.name, .poisson]'
    """
    if sum(asked is not None for asked in (case, sweep, ranks)) > 1:
        raise CommandError("--case, --sweep and --ranks exclude each other")
    if None not in (assumed.mtbf, assumed.rank_mtbf):
        raise CommandError("--mtbf and --rank-mtbf exclude each other")
    try:
        if case is not None:
            tables, body = _case(list(ft_hsdp()))
        elif sweep is not None:
            sizes = _sizes(sweep, assumed.groups or GROUPS)
            times = RecoveryTimes(**times_s)
            tables, body = _sweep(
                [assumed.of(size, assumed.groups or GROUPS, times) for size in sizes]
            )
        else:
            groups = assumed.groups or (FT_HSDP.groups if ranks is None else GROUPS)
            count = FT_HSDP.ranks if ranks is None else ranks
            tables, body = _job(assumed.of(count, groups, RecoveryTimes(**times_s)))
    except (ScenarioError, ConfigError) as exc:
        raise CommandError(str(exc)) from exc
    say(composed(as_json=as_json, body=lambda: body, text=lambda out: _print(out, tables)))


def _print(out: Console, parts: Sequence[RenderableType]) -> None:
    for part in parts:
        out.print(part, highlight=False)


def _sizes(sweep: tuple[int, int], unit: int) -> list[int]:
    first, last = sweep
    if not unit <= first < last <= 10_000_000:
        raise ScenarioError(f"the sweep is {first}:{last}, expected {unit} to 10000000, in order")
    steps = (base * 10**power for power in range(8) for base in (1, 2, 5))
    sizes = {first, last, *(size for size in steps if first < size < last)}
    return sorted({round(size / unit) * unit for size in sizes})


def _body(rows: Sequence[Scenario]) -> dict[str, Any]:
    """One job; keys may be added, never removed."""
    first = rows[0]
    return {
        "job": asdict(first.job), "mix": asdict(first.mix), "times": asdict(first.times),
        "ways": [
            {**asdict(row.handling), "linear": linear(row), "poisson": poisson(row)} for row in rows
        ],
        "eviction_cost_s": eviction_cost_s(first),
    }  # fmt: skip


Answer = tuple[list[RenderableType], Any]
"""For people and for programs."""


def _job(rows: Sequence[Scenario]) -> Answer:
    job = rows[0].job
    grid = _grid("effective training time", "way", "linear", "Poisson",
                 "a hang is decided after", "a slow rank goes after")  # fmt: skip
    for row in rows:
        hang = row.handling.hang
        ends = ", the job ends" if hang.takes_job else ""
        grid.add_row(row.handling.name, f"{linear(row):.2%}", f"{poisson(row):.2%}",
                     _seconds(hang.after_s) + ends,
                     _seconds(row.handling.slow.after_s))  # fmt: skip
    cost_s = eviction_cost_s(rows[0])
    parts: list[RenderableType] = [
        f"{job.ranks:,} ranks in {job.groups} groups, a fault every {_seconds(job.mtbf_s)}",
        grid,
    ]
    parts.append(
        f"an eviction costs {cost_s:.0f} s of the fleet's time, right or wrong; "
        f"one false one a day {cost_s / DAY_S:.2%}"
    )
    late = [row.handling.name for row in rows[RIVAL + 1 :] if row.handling.hang.takes_job]
    if late:
        parts.append(
            f"{late[0]}: a hang is decided later than the survivors give up; lower "
            "stall_factor, or raise TorchFT's timeouts (--give-up)"
        )
    return parts, _body(rows)


def _sweep(sweep: Sequence[Sequence[Scenario]]) -> Answer:
    names = [row.handling.name for row in sweep[0]]
    grid = _grid("effective training time: Poisson", "ranks", "a fault every", *names)
    for rows in sweep:
        job = rows[0].job
        grid.add_row(
            f"{job.ranks:,}", _seconds(job.mtbf_s), *(f"{poisson(row):.2%}" for row in rows)
        )
    return [grid], [_body(rows) for rows in sweep]


def _case(rows: Sequence[tuple[float, Scenario]]) -> Answer:
    grid = _grid("FT-HSDP, arXiv 2602.00277", "way", "published", "linear (theirs)", "Poisson",
                 "all stand", "a group is away")  # fmt: skip
    for published, row in rows:
        stop = toll(row, "stop")
        grid.add_row(row.handling.name, f"{published:.0%}", f"{linear(row):.2%}",
                     f"{poisson(row):.2%}", _seconds(stop.stall_s),
                     _seconds(stop.stall_s + stop.missing_s))  # fmt: skip
    return [grid], [{"published": published, **_body([row])["ways"][0]} for published, row in rows]


def _grid(title: str, *columns: str) -> Table:
    grid = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        grid.add_column(column, overflow="fold", justify="right" if number else "left")
    return grid


def _seconds(span_s: float | None) -> str:
    if span_s is None:
        return "never"
    for unit, size_s in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if span_s < 600.0 * size_s:
            return f"{span_s / size_s:.3g} {unit}"
    return f"{span_s / DAY_S:.3g} d"
