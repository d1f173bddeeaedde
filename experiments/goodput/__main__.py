"""`python -m experiments.goodput`: a forecast of what faults cost a job's training time.

Effective training time: committed steps, by the share of the groups in each, over what the same
time gives without faults. By two closed forms, linear (as in FT-HSDP's paper: faults never meet)
and Poisson (they do). evidence/measurements.md has the formulas and the source of each number.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from experiments.goodput.forecast import (
    GROUPS,
    MEASURED_STEP_S,
    MIX,
    RANK_MTBF_S,
    SHORT_STALL_FACTOR,
    TIMES,
    TORCHFT_LOST_S,
    Handling,
    JobSize,
    Response,
    Scenario,
    detection,
    eviction,
    ft_hsdp,
    linear,
    poisson,
    toll,
    ways,
)
from experiments.pages import table
from lightkeeper.monitor.decide.accounts import ChoiceError, span_s
from lightkeeper.monitor.show.wording import span

FALSE_A_DAY = 1.0


def scenarios(job: JobSize, step_s: float = TIMES.step_s) -> list[Scenario]:
    """The ways to run a job: any fault stops all of it; groups fail alone, and a hung one stands
    until a watchdog or TorchFT's timeouts; lightkeeper as measured, and with steps like these.
    """
    name = f"lightkeeper, {step_s:g} s steps"
    detections = [
        ("lightkeeper, as measured", detection(MEASURED_STEP_S, MIX.slowdown)),
        (name, detection(step_s, MIX.slowdown)),
        (f"{name}, stall_factor {SHORT_STALL_FACTOR:g}",
         detection(step_s, MIX.slowdown, SHORT_STALL_FACTOR)),
    ]  # fmt: skip
    nobody = Handling("", Response(None), Response(None), Response(None))
    plain = Scenario(job, MIX, replace(TIMES, step_s=step_s), nobody)
    return ways(plain, detections, TORCHFT_LOST_S, FALSE_A_DAY)


def published() -> str:
    """FT-HSDP's case beside both forms."""
    head = ("way", "published", "linear (theirs)", "Poisson", "all stand", "a group is away")
    rows = []
    for share, way in ft_hsdp():
        stop = toll(way, "stop")
        rows.append((way.handling.name, f"{share:.0%}", f"{linear(way):.1%}", f"{poisson(way):.1%}",
                     span(stop.stall_s), span(stop.stall_s + stop.missing_s)))  # fmt: skip
    return table(head, rows)


def one(job: JobSize) -> str:
    """Each way to run a job."""
    scenes = scenarios(job)
    head = ("way", "linear", "Poisson", "a hang is decided after", "a slow rank goes after")
    rows = []
    for way in scenes:
        hang, slow = way.handling.hang, way.handling.slow
        ends = ", the job ends" if hang.takes_job else ""
        rows.append((way.handling.name, f"{linear(way):.2%}", f"{poisson(way):.2%}",
                     f"{_after(hang.after_s)}{ends}", _after(slow.after_s)))  # fmt: skip
    cost_s = eviction(scenes[0].times).fleet_s(scenes[0])
    return (
        f"{job.ranks:,} ranks in {job.groups} groups, a fault every {span(job.mtbf_s)}\n\n"
        f"{table(head, rows)}\nAn eviction costs {cost_s:.0f} s of the fleet's time.\n"
    )


def sizes(jobs: Sequence[JobSize]) -> str:
    """Poisson, of several sizes."""
    sweep = [scenarios(job) for job in jobs]
    head = ("ranks", "a fault every", *(way.handling.name for way in sweep[0]))
    rows = [
        (f"{job.ranks:,}", span(job.mtbf_s), *(f"{100 * poisson(way):.2f}" for way in scenes))
        for job, scenes in zip(jobs, sweep, strict=True)
    ]
    return table(head, rows)


def _after(after_s: float | None) -> str:
    return "never" if after_s is None else span(after_s)


def main(words: Sequence[str] | None = None) -> int:
    """Print a table; exit status 2 for a job that there is not."""
    top = argparse.ArgumentParser(prog="experiments.goodput", description=__doc__)
    top.add_argument("--case", choices=("ft-hsdp",), help="a published case, and nothing else")
    top.add_argument("--ranks", type=int, nargs="+", default=[10_000], metavar="N")
    top.add_argument(
        "--groups", type=int, default=GROUPS, metavar="N", help="replica groups (%(default)s)"
    )
    top.add_argument("--mtbf", metavar="TIME", help="of the whole job: 90s, 3h, 1d")
    args = top.parse_args(words)
    if args.case:
        print(published())
        return 0
    try:
        mtbf_s = None if args.mtbf is None else span_s(args.mtbf)
    except ChoiceError:
        top.error(f"{args.mtbf!r} is no time, such as 90s, 3h or 1d")
    for ranks in args.ranks:
        if not 2 <= args.groups <= ranks or ranks % args.groups:
            top.error(f"{ranks} ranks cannot be {args.groups} groups of one size")
    jobs = [JobSize(n, args.groups, mtbf_s or RANK_MTBF_S / n) for n in args.ranks]
    print(one(jobs[0]) if len(jobs) == 1 else sizes(jobs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
