"""Options of `goodput`: the job, its faults, its times, and what is to be compared."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from monitor.commands.errors import USAGE, CommandError
from monitor.commands.offline import add_format
from monitor.goodput.cases import (
    FT_HSDP_JOB,
    GROUPS,
    HANG_S,
    MEASURED_STEP_S,
    MIX,
    RANK_MTBF_H,
    STALL_FACTOR,
    TIMES,
    TORCHFT_LOST_S,
    Detection,
    detection,
)
from monitor.goodput.scenario import DAY_S, Job, Mix, Spares, Times

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Setup:
    """What the options came to, but for the size."""

    mix: Mix
    times: Times
    spares: Spares
    kept: tuple[tuple[str, Detection], ...]
    """Rows with lightkeeper: name, and how soon it decides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options."""
    what = parser.add_argument_group("what to reckon (default: one job)")
    what.add_argument("--case", choices=("ft-hsdp",), help="a published case beside ours")
    what.add_argument(
        "--sweep", type=span, metavar="A:B", help="sizes 1, 2, 5, 10 ... from A to B ranks"
    )
    _add_job(parser.add_argument_group("the job and its faults"))
    _add_times(parser.add_argument_group("times: 90, 90s, 18m, 2h, 1d"))
    add_format(parser)


def _add_job(made: argparse._ArgumentGroup) -> None:
    made.add_argument(
        "--ranks", type=int, metavar="N", help=f"ranks, GPUs (default: {FT_HSDP_JOB.ranks})"
    )
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument("--groups", type=int, metavar="N", help="replica groups (12, in a sweep 10)")
    sizes.add_argument("--group-size", type=int, metavar="N", help="or ranks of one")
    often = made.add_mutually_exclusive_group()
    often.add_argument(
        "--mtbf", type=duration, metavar="TIME", help="mean time between faults of the whole job"
    )
    often.add_argument(
        "--rank-mtbf", type=duration, metavar="TIME", default=RANK_MTBF_H * 3600.0,
        help=f"or of one rank (default: {RANK_MTBF_H:.0f}h, FT-HSDP's; Llama 3's was 50676h)",
    )  # fmt: skip
    made.add_argument(
        "--mix", type=shares, default=(MIX.stop, MIX.hang, MIX.slow), metavar="STOP:HANG:SLOW",
        help=f"kinds of faults, in any unit ({MIX.stop * 100:g}:{MIX.hang * 100:g}"
        f":{MIX.slow * 100:g})",
    )  # fmt: skip
    made.add_argument(
        "--slowdown", type=float, default=MIX.slowdown, metavar="X",
        help="times as long as a step takes with a slow rank (%(default)g)",
    )  # fmt: skip
    made.add_argument(
        "--slow-lasts", type=duration, default=MIX.slow_lasts_s, metavar="TIME",
        help="how long one stays slow by itself, mean (24m)",
    )  # fmt: skip
    made.add_argument(
        "--false-evictions", type=float, default=1.0, metavar="PER_DAY",
        help="of healthy groups, for the last row (%(default)g)",
    )  # fmt: skip
    made.add_argument(
        "--spares", type=int, metavar="HOSTS", help="hosts that wait (default: enough)"
    )
    made.add_argument(
        "--repair", type=duration, default=DAY_S, metavar="TIME",
        help="until a host that was evicted is a spare again (24h)",
    )  # fmt: skip


def _add_times(made: argparse._ArgumentGroup) -> None:
    made.add_argument(
        "--detect-hang", type=duration, metavar="TIME",
        help=f"lightkeeper's (default: both {HANG_S:g}, as measured with short steps, and as its "
        "thresholds are for --step)",
    )  # fmt: skip
    made.add_argument(
        "--detect-slow", type=duration_or_never, metavar="TIME",
        help="the same for a slow rank, or never; it goes once it has cost an eviction",
    )  # fmt: skip
    made.add_argument(
        "--stall-factor",
        type=float,
        metavar="X",
        help="the monitor's: a hang is decided after so many step times (default: both 10, its "
        f"default, and {STALL_FACTOR:g})",
    )
    made.add_argument(
        "--give-up",
        type=duration,
        default=TORCHFT_LOST_S,
        metavar="TIME",
        help="the survivors of a hang crash after it (125, TorchFT's defaults)",
    )
    for name, about in (
        ("evict", "from the decision until the group's processes are gone"),
        ("requorum", "from then until the survivors train again"),
        ("restart", "from the group's end until new processes are ready to heal"),
        ("heal", "until these have weights and optimizer state"),
        ("first-step", "all stand while a group comes back"),
        ("job-restart", "a synchronous job, from its end until it trains where it was"),
        ("step", "one step; half of one is lost with each stall"),
    ):
        default = getattr(TIMES, f"{name.replace('-', '_')}_s")
        made.add_argument(f"--{name}", type=duration, metavar="TIME", help=f"{about} ({default:g})")


def job_of(args: argparse.Namespace, ranks: int | None = None) -> Job:
    """The job, at another size where a sweep says so.

    Raises:
        ScenarioError: it makes no sense.
        CommandError: nor do the options.
    """
    count = ranks if args.ranks is None else args.ranks
    if count is None:
        count = FT_HSDP_JOB.ranks
    groups = groups_of(args, count)
    mtbf_s = args.mtbf
    if mtbf_s is None:
        mtbf_s = args.rank_mtbf / count if count > 0 else math.nan
    return Job(count, groups, mtbf_s)


def groups_of(args: argparse.Namespace, count: int) -> int:
    """How many groups so many ranks are.

    Raises:
        CommandError: the size of a group does not divide them.
    """
    if args.group_size is None:
        usual = FT_HSDP_JOB.groups if args.ranks is None and not args.sweep else GROUPS
        return int(usual if args.groups is None else args.groups)
    if args.group_size < 1 or count % args.group_size:
        raise CommandError(f"{count} ranks are no groups of {args.group_size}", USAGE)
    return int(count // args.group_size)


def setup_of(args: argparse.Namespace) -> Setup:
    """Everything but the size: what was said, else the defaults.

    Raises:
        ScenarioError: it makes no sense.
    """
    stop, hang, slow = args.mix
    mix = Mix(stop, hang, slow, args.slowdown, args.slow_lasts)
    times = replace(TIMES, **_times(args))
    spares = Spares(args.spares, args.repair)
    return Setup(mix, times, spares, _kept(args, times, mix))


def _times(args: argparse.Namespace) -> Mapping[str, Any]:
    names = ("evict", "requorum", "restart", "heal", "first_step", "job_restart", "step")
    return {f"{name}_s": said for name in names if (said := getattr(args, name)) is not None}


def _kept(args: argparse.Namespace, times: Times, mix: Mix) -> tuple[tuple[str, Detection], ...]:
    by_rule = detection(times.step_s, mix.slowdown, args.stall_factor)
    hang_s, slow_s = args.detect_hang, args.detect_slow
    if hang_s is not None or slow_s is not None:
        slow_s = by_rule.slow_s if slow_s is None else slow_s
        found = Detection(
            by_rule.hang_s if hang_s is None else hang_s, None if slow_s == _NEVER else slow_s
        )
        return (("lightkeeper", found),)
    short = detection(MEASURED_STEP_S, mix.slowdown)
    if by_rule == short:
        return (("lightkeeper", short),)
    steps = f"lightkeeper, {times.step_s:g} s steps"
    if args.stall_factor is not None:
        return (("lightkeeper, as measured", short), (steps, by_rule))
    sooner = detection(times.step_s, mix.slowdown, STALL_FACTOR)
    return (
        ("lightkeeper, as measured", short),
        (steps, by_rule),
        (f"{steps}, stall_factor {STALL_FACTOR:g}", sooner),
    )


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


def duration_or_never(text: str) -> float:
    """The same, or `never`."""
    return _NEVER if text == "never" else duration(text)


def shares(text: str) -> tuple[float, float, float]:
    """Three shares of one, from three numbers in any unit."""
    try:
        found = [float(word) for word in text.split(":")]
    except ValueError:
        found = []
    total = sum(found)
    if len(found) != 3 or not all(number >= 0.0 for number in found) or not 0.0 < total < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not STOP:HANG:SLOW, such as 83:12:5")
    return found[0] / total, found[1] / total, found[2] / total


def span(text: str) -> tuple[int, int]:
    """Two sizes."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 1000:100000")
    return int(first), int(last)
