"""`lightkeeper goodput`: computes how much of the time a fault-tolerant job trains.

**Effective training time** (goodput): committed steps, weighted by the share of groups that
contributed to each, over the steps the same time gives without faults. Two closed forms:

**Linear** is the arithmetic of FT-HSDP (arXiv 2602.00277): one fault per MTBF, none while another
is handled; M the MTBF, S the stall of all, T the time a group is away, R groups:

    synchronous      (M - T) / M
    fault tolerant   [(M - T) + (T - S) (R - 1) / R] / M

**Poisson**: faults come at any time, also during a recovery. All train at a moment unless a stall
began within the last S (M/G/infinity: exp(-S/M)); the share of time that one group is away is that
of an alternating renewal process, 1 - 1 / (1 + T / (M R)).

    synchronous      exp(-T / M)
    fault tolerant   exp(-S / M) / (1 + (T - S) / (M R))

Both work for any mix of kinds: *fail-stop* (the process or host is gone), *hang* (it is alive but
stands, and everybody waits), *slow* (all run at its pace until it recovers or is evicted). Every
number has its source; docs/offline.md repeats them and says how far to trust them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from trainer.options import OneLineParser

DAY_S: Final = 86_400.0
KINDS: Final = ("stop", "hang", "slow")
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}


class ScenarioError(ValueError):
    """An invalid number; one line."""


def _check(what: str, value: float, low: float, high: float = 1e9) -> None:
    if not low <= value <= high:  # NaN too
        raise ScenarioError(f"{what} is {value:g}, expected {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class JobSize:
    """`mtbf_s`: the mean time between faults of any of its ranks."""

    ranks: int
    groups: int
    mtbf_s: float

    def __post_init__(self) -> None:
        _check("ranks", self.ranks, 2, 1e7)
        _check("groups", self.groups, 2, self.ranks)
        _check("mtbf_s", self.mtbf_s, 1.0)
        if self.ranks % self.groups:
            raise ScenarioError(f"{self.ranks} ranks cannot be {self.groups} groups of one size")


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the kinds of faults; a slow rank makes a step `slowdown` times as long, for
    `slow_lasts_s` on average (exponential) unless it is evicted.
    """

    stop: float = 1.0
    hang: float = 0.0
    slow: float = 0.0
    slowdown: float = 2.0
    slow_lasts_s: float = 1440.0

    def __post_init__(self) -> None:
        total = self.stop + self.hang + self.slow
        if min(self.stop, self.hang, self.slow) < 0 or not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ScenarioError(f"the shares of stop, hang and slow add up to {total:g}, not 1")
        _check("slowdown", self.slowdown, 1.0, 1000.0)
        _check("slow_lasts_s", self.slow_lasts_s, 1e-3)

    @property
    def drag(self) -> float:
        """Share of the training time that a slow rank takes from everybody."""
        return 1.0 - 1.0 / self.slowdown


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """What follows a decision, in seconds. `TIMES_SAY` explains each."""

    evict_s: float = 0.0
    requorum_s: float = 0.0
    restart_s: float = 0.0
    heal_s: float = 0.0
    first_step_s: float = 0.0
    job_restart_s: float = 0.0
    step_s: float = 0.0

    def __post_init__(self) -> None:
        for time in fields(self):
            _check(time.name, getattr(self, time.name), 0.0)


TIMES_SAY: Final = {
    "evict_s": "from the decision until the group's processes are gone",
    "requorum_s": "from then until the survivors train again",
    "restart_s": "from the group's end until new processes are ready to heal",
    "heal_s": "until these have weights and optimizer state",
    "first_step_s": "all stand while a group comes back",
    "job_restart_s": "a synchronous job, from its end until it trains where it was",
    "step_s": "one step; half of one is lost with each stall",
}


@dataclass(frozen=True, slots=True)
class Response:
    """A decision `after_s` the fault (None: never); then the whole job restarts, or only the
    group.
    """

    after_s: float | None
    takes_job: bool = False


@dataclass(frozen=True, slots=True)
class Handling:
    """One way to run a job: the response to each kind of fault, and how many healthy groups are
    evicted by mistake.
    """

    name: str
    stop: Response
    hang: Response
    slow: Response
    false_per_day: float = 0.0

    def __post_init__(self) -> None:
        _check("false evictions a day", self.false_per_day, 0.0, 1e6)


@dataclass(frozen=True, slots=True)
class Scenario:
    job: JobSize
    mix: Mix
    times: RecoveryTimes
    handling: Handling


# -- the two closed forms -------------------------------------------------------------------------


class Toll(NamedTuple):
    """The average cost of one fault: seconds in which nobody trains; the others train without its
    group; all train at a slow rank's pace; its group cannot fail again.
    """

    stall_s: float = 0.0
    missing_s: float = 0.0
    dragged_s: float = 0.0
    out_s: float = 0.0

    def fleet_s(self, scenario: Scenario) -> float:
        """Seconds of the whole fleet's training."""
        missing_s = self.missing_s / scenario.job.groups
        return self.stall_s + missing_s + self.dragged_s * scenario.mix.drag


def _weighed(parts: Iterable[tuple[float, Toll]]) -> Toll:
    columns = zip(*([weight * value for value in toll] for weight, toll in parts), strict=True)
    return Toll(*map(sum, columns))


def eviction(times: RecoveryTimes, detect_s: float = 0.0, *, alive: bool = True) -> Toll:
    """One group evicted and readmitted; `detect_s`: how long all stood before."""
    evict_s = times.evict_s if alive else 0.0  # a fail-stop needs none
    again_s = times.requorum_s + times.step_s / 2.0
    missing_s = max(0.0, times.restart_s + times.heal_s - again_s)
    stood_s = detect_s + evict_s + again_s
    return Toll(stood_s + times.first_step_s, missing_s, 0.0, stood_s + missing_s)


def toll(scenario: Scenario, kind: str) -> Toll:
    """The average cost of one fault of a kind."""
    response: Response = getattr(scenario.handling, kind)
    times, mix = scenario.times, scenario.mix
    if kind != "slow":
        detect_s = response.after_s or 0.0
        if response.takes_job:
            return Toll(stall_s=detect_s + times.job_restart_s)
        return eviction(times, detect_s, alive=kind == "hang")
    if response.after_s is None:
        return Toll(dragged_s=mix.slow_lasts_s)
    still_slow = math.exp(-response.after_s / mix.slow_lasts_s)
    dragged = Toll(dragged_s=mix.slow_lasts_s * (1.0 - still_slow))
    return _weighed([(1.0, dragged), (still_slow, eviction(times))])


def mean_toll(scenario: Scenario) -> Toll:
    """The average over all kinds."""
    return _weighed([(getattr(scenario.mix, kind), toll(scenario, kind)) for kind in KINDS])


def eviction_cost_s(scenario: Scenario) -> float:
    """Fleet seconds that one eviction costs, right or wrong."""
    return eviction(scenario.times).fleet_s(scenario)


def linear(scenario: Scenario) -> float:
    """Effective training time by the paper's formula; 0 where faults outpace recovery."""
    lost = mean_toll(scenario).fleet_s(scenario) / scenario.job.mtbf_s
    lost += scenario.handling.false_per_day * eviction_cost_s(scenario) / DAY_S
    return max(0.0, 1.0 - lost)


def poisson(scenario: Scenario) -> float:
    """Effective training time if faults come at any moment, also during a recovery."""
    groups = scenario.job.groups
    a_second = _weighed([
        (1.0 / scenario.job.mtbf_s, mean_toll(scenario)),
        (scenario.handling.false_per_day / DAY_S, eviction(scenario.times)),
    ])  # fmt: skip
    present = 1.0 / (1.0 + a_second.out_s / groups)  # an absent group cannot fail
    there = 1.0 / (1.0 + a_second.missing_s / groups)
    dragged = -math.expm1(-a_second.dragged_s * present)  # a slow rank or several: one pace
    return math.exp(-a_second.stall_s * present) * there * (1.0 - scenario.mix.drag * dragged)


# -- FT-HSDP's published case ---------------------------------------------------------------------

FT_HSDP: Final = JobSize(ranks=98_304, groups=12, mtbf_s=18 * 60.0)
"""12 groups of 8,192 GPUs, a failure about every 18 minutes: 29,491 GPU-hours per fault. Llama 3:
419 in 54 days on 16,384 GPUs, 50,676."""
RANK_MTBF_S: Final = FT_HSDP.mtbf_s * FT_HSDP.ranks
STEP_S: Final = 20.0
"""A step at that size."""
DETECT_S: Final = 60.0
AWAY_S: Final = 420.0
"""A group is away for ten minutes; for three all stand, two of them for its return."""
_PAPER: Final = RecoveryTimes(
    restart_s=AWAY_S - STEP_S, heal_s=STEP_S, first_step_s=120.0, job_restart_s=540.0
)


def ft_hsdp() -> Iterator[tuple[float, Scenario]]:
    """The rows of its abstract: stall 10 to 3 minutes, 44 % to 80 %."""
    for name, published, takes_job in (("synchronous", 0.44, True), ("FT-HSDP", 0.80, False)):
        response = Response(DETECT_S, takes_job)
        handling = Handling(name, response, response, Response(None))
        yield published, Scenario(FT_HSDP, Mix(), _PAPER, handling)


# -- measured here, on fleets of three groups of one rank and two of two, on CPU ------------------

HANG_S: Final = 8.8
"""From a hang until it fires: median of the 140 runs of classes `stop`, `gil` and `hang-*` in
evidence/campaign.jsonl; the 95th percentile is 33.5 s (undeclared phases)."""
SLOW_S: Final = 26.2
"""The same for the 40 runs of `slow-compute` and `slow-data`."""
STOP_S: Final = 0.6
"""A crash: the survivors commit 6.0 s after it (median of the 60 runs of `crash`, `segfault`,
`abort`), minus `requorum_s`; the Lighthouse's heartbeat timeout acts, nobody evicts."""
TIMES: Final = replace(_PAPER, evict_s=0.5, requorum_s=5.4, step_s=STEP_S)
"""Measured here where the keeper acts: the processes were gone 0.3 to 0.8 s after the decision in
nine evictions on real fleets with the gate (`make matrix`), and the survivors committed 5.9 s after
it (median of 140), five of which are the Lighthouse's `heartbeat_timeout_ms`. FT-HSDP's otherwise:
a restart of our fleets (17 to 20 s) says nothing about 8,192 GPUs."""
TORCHFT_LOST_S: Final = 125.0
"""TorchFT's defaults (60 s everywhere): after a hang the survivors crash, and the job with them;
measured 122 to 135 s."""
MEASURED_STEP_S: Final = 0.2

# -- assumed --------------------------------------------------------------------------------------

WATCHDOG_S: Final = 600.0
"""torch's default NCCL process group timeout: then the hung group ends itself."""
SHORT_STALL_FACTOR: Final = 3.0
"""Suits a job with 20 s steps: 60 s, as long as FT-HSDP waits. The default of 10 step times,
200 s, comes after TorchFT gives up."""
MIX: Final = Mix(stop=0.83, hang=0.12, slow=0.05)
"""12 %: the implicit failures among ByteRobust's incidents (5,948 of 49,212, arXiv 2509.16293). 5 %
slow ranks, twice as slow, is a guess; 24 minutes is Greyhound's mean for slow communication (USENIX
ATC '25; 10 for slow computation)."""
GROUPS: Final = 10

MONITOR: Final = {
    "stall_floor_s": 5.0, "stall_factor": 10.0, "window_s": 5.0, "window_steps": 3,
    "window_limit_s": 120.0, "straggler_ratio": 1.5, "straggler_slow_windows": 4,
}  # fmt: skip
"""The monitor's thresholds; a test compares them."""


class Detection(NamedTuple):
    """When lightkeeper decides, past all thresholds; None: never."""

    hang_s: float = HANG_S
    slow_s: float | None = SLOW_S


def detection(step_s: float, slowdown: float, stall_factor: float) -> Detection:
    """Measured with steps of 0.2 s, scaled to longer ones by the monitor's thresholds.

    A hang fires after `stall_factor` step times if that exceeds the floor; a straggler is measured
    in windows of `window_steps`, none longer than `window_limit_s`.
    """
    hang_s = HANG_S + max(0.0, stall_factor * step_s - MONITOR["stall_floor_s"])
    window_s = max(MONITOR["window_s"], MONITOR["window_steps"] * step_s)
    if window_s > MONITOR["window_limit_s"] or slowdown < MONITOR["straggler_ratio"]:
        return Detection(hang_s, None)
    more_s = MONITOR["straggler_slow_windows"] * (window_s - MONITOR["window_s"])
    return Detection(hang_s, SLOW_S + more_s)


def kept(name: str, detected: Detection, plain: Scenario, give_up_s: float) -> Handling:
    """With lightkeeper: hung and slow groups are evicted; the Lighthouse handles a crash.

    A hang not decided before the survivors give up ends the job, as without us. A straggler is
    evicted once it has cost what an eviction costs (ski rental), however soon it was found.
    """
    in_time = detected.hang_s + plain.times.evict_s < give_up_s
    hang = Response(detected.hang_s) if in_time else Response(give_up_s, takes_job=True)
    slow_s = detected.slow_s if plain.mix.drag > 0.0 else None
    if slow_s is not None:
        slow_s = max(slow_s, eviction_cost_s(plain) / plain.mix.drag)
    return Handling(name, Response(STOP_S), hang, Response(slow_s))


RIVAL: Final = 2
"""Index of the way that lightkeeper is compared with: TorchFT's timeouts."""


def ways(
    plain: Scenario,
    detections: Sequence[tuple[str, Detection]],
    give_up_s: float,
    false_per_day: float,
) -> list[Scenario]:
    """Without a keeper (no slow rank is found), with it by name, and the last of those again with
    false evictions.
    """
    watchdog, never = Response(WATCHDOG_S), Response(None)
    whole = [Response(after_s, takes_job=True) for after_s in (DETECT_S, WATCHDOG_S, give_up_s)]
    rows = [
        Handling("synchronous", whole[0], whole[1], never),
        Handling("FT, watchdog 10 min", Response(STOP_S), watchdog, never),
        Handling("TorchFT's timeouts", Response(STOP_S), whole[2], never),
        *(kept(name, detected, plain, give_up_s) for name, detected in detections),
    ]
    if false_per_day != 0.0:  # a negative one is refused
        name = f"+ {false_per_day:g} false a day"
        rows.append(replace(rows[-1], name=name, false_per_day=false_per_day))
    return [replace(plain, handling=row) for row in rows]


# -- the command ----------------------------------------------------------------------------------

_EXAMPLES: Final = """\
what it computes:
  Effective training time: committed steps, by the share of the groups in each, over what the same
  time gives without faults. By two closed forms, linear (as in FT-HSDP's paper: faults never
  meet) and Poisson (they do). It compares
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


def _parser() -> argparse.ArgumentParser:
    made = OneLineParser(
        prog="lightkeeper goodput", description="estimate how much of the time a job trains",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = made.add_argument
    what = made.add_mutually_exclusive_group()
    what.add_argument("--case", choices=("ft-hsdp",), help="a published case")
    what.add_argument("--sweep", type=span, metavar="A:B", help="1, 2, 5, 10 ... from A to B ranks")
    what.add_argument("--ranks", type=int, metavar="N", help=f"GPUs (default: {FT_HSDP.ranks})")
    add("--groups", type=int, metavar="N", help="replica groups (12, with --ranks or --sweep 10)")
    often = made.add_mutually_exclusive_group()
    often.add_argument(
        "--mtbf", type=duration, metavar="TIME", help="of the whole job: 90s, 3h, 1d"
    )
    often.add_argument(
        "--rank-mtbf", type=duration, metavar="TIME", default=RANK_MTBF_S,
        help=f"of one rank ({RANK_MTBF_S / 3600:.0f}h, FT-HSDP's; Llama 3's was 50676h)",
    )  # fmt: skip
    add("--mix", type=shares, default=(MIX.stop, MIX.hang, MIX.slow), metavar="STOP:HANG:SLOW",
        help="kinds of faults, in any unit (83:12:5)")  # fmt: skip
    add("--slowdown", type=float, default=MIX.slowdown, metavar="X",
        help="times as long as a step takes with a slow rank (2)")  # fmt: skip
    add("--slow-lasts", type=duration, default=MIX.slow_lasts_s, metavar="TIME",
        help="how long one stays slow by itself, mean (24m)")  # fmt: skip
    add("--false-evictions", type=float, default=1.0, metavar="PER_DAY",
        help="of healthy groups, for the last row (1)")  # fmt: skip
    add("--detect-hang", type=duration, metavar="TIME",
        help=f"lightkeeper's ({HANG_S:g}, measured with short steps, and by --step)")  # fmt: skip
    add("--stall-factor", type=float, metavar="X",
        help=f"a hang is decided after so many step times (both 10, the monitor's default, and "
        f"{SHORT_STALL_FACTOR:g})")  # fmt: skip
    add("--give-up", type=duration, default=TORCHFT_LOST_S, metavar="TIME",
        help="the survivors of a hang crash after it (125, TorchFT's defaults)")  # fmt: skip
    for name, about in TIMES_SAY.items():
        default = getattr(TIMES, name)
        option = "--" + name.removesuffix("_s").replace("_", "-")
        add(option, dest=name, type=duration, default=default, metavar="TIME",
            help=f"{about} ({default:g})")  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="json: for programs")
    return made


def duration(text: str) -> float:
    """Seconds: `90`, `90s`, `18m`, `2h`, `1d`."""
    words = text.strip().lower()
    unit = _UNITS_S.get(words[-1:])
    try:
        number = float(words if unit is None else words[:-1])
    except ValueError:
        number = math.nan
    if not (number >= 0.0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 90, 90s, 18m, 2h or 1d")
    return number * (unit or 1.0)


def shares(text: str) -> tuple[float, ...]:
    """Three shares that add up to 1, from numbers in any unit."""
    try:
        parts = [float(word) for word in text.split(":")]
    except ValueError:
        parts = []
    total = sum(parts)
    if len(parts) != 3 or not all(number >= 0.0 for number in parts) or not 0.0 < total < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not STOP:HANG:SLOW, such as 83:12:5")
    return tuple(number / total for number in parts)


def span(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 1000:100000")
    return int(first), int(last)


def _sizes(sweep: tuple[int, int], unit: int) -> list[int]:
    first, last = sweep
    if not unit <= first < last <= 10_000_000:
        raise ScenarioError(f"the sweep is {first}:{last}, expected {unit} to 10000000, in order")
    steps = (base * 10**power for power in range(8) for base in (1, 2, 5))
    sizes = {first, last, *(size for size in steps if first < size < last)}
    return sorted({round(size / unit) * unit for size in sizes})


def _job_ways(args: argparse.Namespace, ranks: int | None) -> list[Scenario]:
    groups = args.groups or (FT_HSDP.groups if ranks is None else GROUPS)
    count = FT_HSDP.ranks if ranks is None else ranks
    mtbf_s = args.rank_mtbf / max(1, count) if args.mtbf is None else args.mtbf
    times = RecoveryTimes(**{name: getattr(args, name) for name in TIMES_SAY})
    stop, hang, slow = args.mix
    mix = Mix(stop, hang, slow, args.slowdown, args.slow_lasts)
    nobody = Handling("", Response(None), Response(None), Response(None))
    plain = Scenario(JobSize(count, groups, mtbf_s), mix, times, nobody)
    return ways(plain, _detections(args, times, mix), args.give_up, args.false_evictions)


def _detections(
    args: argparse.Namespace, times: RecoveryTimes, mix: Mix
) -> list[tuple[str, Detection]]:
    def at(factor: float | None, step_s: float = times.step_s) -> Detection:
        return detection(
            step_s, mix.slowdown, MONITOR["stall_factor"] if factor is None else factor
        )

    if args.detect_hang is not None:
        return [("lightkeeper", at(None)._replace(hang_s=args.detect_hang))]
    short, steps = at(None, MEASURED_STEP_S), f"lightkeeper, {times.step_s:g} s steps"
    rows = [("lightkeeper, as measured", short), (steps, at(args.stall_factor))]
    if rows[1][1] == short:
        return [("lightkeeper", short)]
    if args.stall_factor is None:
        rows.append((f"{steps}, stall_factor {SHORT_STALL_FACTOR:g}", at(SHORT_STALL_FACTOR)))
    return rows


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


def _job(args: argparse.Namespace, out: Console) -> object:
    rows = _job_ways(args, args.ranks)
    job = rows[0].job
    out.print(f"{job.ranks:,} ranks in {job.groups} groups, a fault every {_seconds(job.mtbf_s)}")
    grid = _grid("effective training time", "way", "linear", "Poisson",
                 "a hang is decided after", "a slow rank goes after")  # fmt: skip
    for row in rows:
        hang = row.handling.hang
        ends = ", the job ends" if hang.takes_job else ""
        grid.add_row(row.handling.name, f"{linear(row):.2%}", f"{poisson(row):.2%}",
                     _seconds(hang.after_s) + ends,
                     _seconds(row.handling.slow.after_s))  # fmt: skip
    out.print(grid)
    cost_s = eviction_cost_s(rows[0])
    out.print(f"an eviction costs {cost_s:.0f} s of the fleet's time, right or wrong; "
              f"one false one a day {cost_s / DAY_S:.2%}")  # fmt: skip
    late = [row.handling.name for row in rows[RIVAL + 1 :] if row.handling.hang.takes_job]
    if late:
        out.print(f"{late[0]}: a hang is decided later than the survivors give up; lower "
                  "stall_factor, or raise TorchFT's timeouts (--give-up)")  # fmt: skip
    return _body(rows)


def _sweep(args: argparse.Namespace, out: Console) -> object:
    sweep = [_job_ways(args, size) for size in _sizes(args.sweep, args.groups or GROUPS)]
    names = [row.handling.name for row in sweep[0]]
    grid = _grid("effective training time: Poisson", "ranks", "a fault every", *names)
    for rows in sweep:
        job = rows[0].job
        grid.add_row(
            f"{job.ranks:,}", _seconds(job.mtbf_s), *(f"{poisson(row):.2%}" for row in rows)
        )
    out.print(grid)
    return [_body(rows) for rows in sweep]


def _case(out: Console) -> object:
    rows = list(ft_hsdp())
    grid = _grid("FT-HSDP, arXiv 2602.00277", "way", "published", "linear (theirs)", "Poisson",
                 "all stand", "a group is away")  # fmt: skip
    for published, row in rows:
        stop = toll(row, "stop")
        grid.add_row(row.handling.name, f"{published:.0%}", f"{linear(row):.2%}",
                     f"{poisson(row):.2%}", _seconds(stop.stall_s),
                     _seconds(stop.stall_s + stop.missing_s))  # fmt: skip
    out.print(grid)
    return [{"published": published, **_body([row])["ways"][0]} for published, row in rows]


def _grid(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", justify="right" if number else "left")
    return made


def _seconds(span_s: float | None) -> str:
    if span_s is None:
        return "never"
    for unit, size_s in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if span_s < 600.0 * size_s:
            return f"{span_s / size_s:.3g} {unit}"
    return f"{span_s / DAY_S:.3g} d"


def main(words: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(words)
    quiet = args.format == "json"
    out = Console(width=None if sys.stdout.isatty() else 160, highlight=False, quiet=quiet)
    try:
        body = _case(out) if args.case else _sweep(args, out) if args.sweep else _job(args, out)
    except ScenarioError as exc:
        parser.error(str(exc))
    if quiet:
        print(json.dumps(body, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
