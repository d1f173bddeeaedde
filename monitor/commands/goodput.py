"""`lightkeeper goodput`: how much of the time a job trains, reckoned."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.goodput_options import add_arguments, groups_of, job_of, setup_of
from monitor.commands.offline import judging, show
from monitor.goodput.cases import ft_hsdp, ways
from monitor.goodput.compare import Outcome, compare, sizes
from monitor.goodput.scenario import ScenarioError
from monitor.reports.goodput import (
    case_body,
    job_body,
    print_case,
    print_job,
    print_sweep,
    sweep_body,
)

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
what it tells:
  Effective training time: committed steps, by the share of the groups in each, over what the same
  time gives without faults. By two closed forms, linear (as FT-HSDP's paper reckons: faults never
  meet) and Poisson (they do). It compares
    synchronous           any fault stops the whole job, which starts again
    FT, watchdog 10 min   groups fail alone; a hung one stands until its process group times out
    TorchFT's timeouts    groups fail alone; a hang takes the job after 125 s (measured)
    lightkeeper           a hung or slow group is evicted: as soon as was measured with steps of
                          0.2 s, and as soon as its thresholds allow with steps as yours
  docs/goodput.md has the formulas, the source of each number, and what they are worth.

examples:
  lightkeeper goodput --case ft-hsdp                      44 % -> 80 % at 98,304 GPUs, ours beside
  lightkeeper goodput --ranks 16384 --groups 8 --mtbf 3h  my job
  lightkeeper goodput --sweep 1000:100000
  lightkeeper goodput --ranks 4096 --groups 8 --spares 2 --repair 3d
  lightkeeper goodput --format json | jq '.ways[] | [.name, .poisson]'

exit status:
  0  done      2  used wrongly      70  a fault of lightkeeper itself
"""


@judging
def run(args: argparse.Namespace) -> int:
    """Reckon, simulate, print."""
    if args.case and args.sweep:
        raise CommandError("--case and --sweep are two questions: ask for one", USAGE)
    if args.sweep and (args.mtbf is not None or args.ranks is not None):
        raise CommandError("a sweep has many sizes: give --rank-mtbf, and no --ranks", USAGE)
    try:
        if args.case:
            _case(args)
        elif args.sweep:
            _sweep(args)
        else:
            _job(args)
    except ScenarioError as exc:
        raise CommandError(str(exc), USAGE) from exc
    return DONE


def _case(args: argparse.Namespace) -> None:
    rows = ft_hsdp()
    outcomes = compare([row.scenario for row in rows])
    show(
        as_json=args.format == "json",
        body=lambda: case_body(rows, outcomes),
        text=lambda out: print_case(out, rows, outcomes),
    )


def _job(args: argparse.Namespace) -> None:
    outcomes, kept = _outcomes(args)
    show(
        as_json=args.format == "json",
        body=lambda: job_body(outcomes),
        text=lambda out: print_job(out, outcomes, kept),
    )


def _sweep(args: argparse.Namespace) -> None:
    first, last = args.sweep
    step = args.group_size or groups_of(args, first)
    sweep = [_outcomes(args, size)[0] for size in sizes(first, last, step)]
    show(
        as_json=args.format == "json",
        body=lambda: sweep_body(sweep),
        text=lambda out: print_sweep(out, sweep),
    )


def _outcomes(args: argparse.Namespace, size: int | None = None) -> tuple[Sequence[Outcome], int]:
    """All ways at one size, and the number of the one with lightkeeper that is explained."""
    setup = setup_of(args)
    scenarios = ways(
        job_of(args, size),
        mix=setup.mix,
        times=setup.times,
        spares=setup.spares,
        kept=setup.kept,
        give_up_s=args.give_up,
        false_per_day=args.false_evictions,
    )
    false = 1 if args.false_evictions > 0.0 else 0
    return compare(scenarios), len(scenarios) - 1 - false
