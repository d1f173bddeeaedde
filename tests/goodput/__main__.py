"""`python -m tests.goodput`: a forecast of what faults cost a job's training time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, NamedTuple

import click

from lightkeeper.monitor.commands.command import CommandError, as_json, command, option
from lightkeeper.monitor.commands.printing import console, print_json, show_table, text
from lightkeeper.monitor.decide.accounts import ChoiceError, span_s
from lightkeeper.monitor.model.units import span
from tests.goodput.forecast import (
    FT_HSDP,
    GROUPS,
    KINDS,
    MEASURED_STEP_S,
    MIX,
    RANK_MTBF_S,
    SHORT_STALL_FACTOR,
    TIMES,
    TORCHFT_LOST_S,
    Detection,
    Handling,
    JobSize,
    Mix,
    RecoveryTimes,
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

ASSUMED: Final[Mapping[str, tuple[float | None, str]]] = {
    "rank_mtbf": (RANK_MTBF_S, "between two faults of one rank: FT-HSDP's; Llama 3's was 50676h"),
    "stop": (MIX.stop, "share of faults that end a process or host; shares in any unit"),
    "hang": (MIX.hang, "share of faults after which a rank stands"),
    "slow": (MIX.slow, "share of faults after which a rank is slow"),
    "slowdown": (MIX.slowdown, "times as long as a step takes with a slow rank"),
    "slow_lasts": (MIX.slow_lasts_s, "how long a rank stays slow by itself, mean"),
    "false_evictions": (1.0, "of healthy groups a day, for the last row"),
    "stall_factor": (None, f"step times until a hang is decided: 10, and {SHORT_STALL_FACTOR:g}"),
    "give_up": (TORCHFT_LOST_S, "the survivors of a hang crash after it; TorchFT's defaults"),
    "evict": (TIMES.evict_s, "from the decision until the group's processes are gone"),
    "requorum": (TIMES.requorum_s, "from then until the survivors train again"),
    "restart": (TIMES.restart_s, "from the group's end until new processes are ready to heal"),
    "heal": (TIMES.heal_s, "until these have weights and optimizer state"),
    "first_step": (TIMES.first_step_s, "all stand while a group comes back"),
    "job_restart": (TIMES.job_restart_s, "a synchronous job, from its end until it trains again"),
    "step": (TIMES.step_s, "one step; half of one is lost with each stall"),
}
"""What `--assume` sets: its default (None: computed) and its meaning; times in seconds."""
_LIMITS: Final = {
    "rank_mtbf": (1.0, 1e16), "slowdown": (1.0, 1e3), "slow_lasts": (1e-3, 1e9),
    "false_evictions": (0.0, 1e6), "stall_factor": (1.0, 1e6),
}  # fmt: skip


def _checked(what: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise CommandError(f"{what} is {value:g}, expected {least:g} to {most:g}")
    return value


def _number(text: str) -> float:
    """A number, or seconds: `90`, `90s`, `18m`, `2h`, `1d`."""
    try:
        return span_s(text)
    except ChoiceError as exc:
        problem = f"{text!r} is no number and no time, such as 90, 90s, 18m, 2h or 1d"
        raise CommandError(problem) from exc


def _assumed(assume: tuple[str, ...], mtbf: str | None) -> dict[str, float]:
    """The numbers of `ASSUMED` that are not computed; `mtbf` takes the place of one."""
    if mtbf is not None and any(words.startswith("rank_mtbf=") for words in assume):
        raise CommandError("--mtbf and --assume rank_mtbf exclude each other")
    numbers = {name: usual for name, (usual, _) in ASSUMED.items() if usual is not None}
    for words in assume:
        name, _, value = words.partition("=")
        if name not in ASSUMED:
            raise CommandError(f"{name!r} is not assumed; there are {', '.join(ASSUMED)}")
        numbers[name] = _checked(name, _number(value), *_LIMITS.get(name, (0.0, 1e9)))
    return numbers


def _scenarios(
    ranks: int, groups: int, mtbf_s: float | None, said: Mapping[str, float]
) -> list[Scenario]:
    """The ways to run a job of this size."""
    _checked("ranks", ranks, 2, 1e7)
    _checked("groups", groups, 2, ranks)
    if ranks % groups:
        raise CommandError(f"{ranks} ranks cannot be {groups} groups of one size")
    mtbf_s = said["rank_mtbf"] / ranks if mtbf_s is None else mtbf_s
    job = JobSize(ranks, groups, _checked("the mean time between faults", mtbf_s, 1.0, 1e9))
    shares = [said[kind] for kind in KINDS]
    total = _checked("the sum of stop, hang and slow", sum(shares), 1e-9, 1e10)
    stop, hang, slow = (share / total for share in shares)
    mix = Mix(stop, hang, slow, said["slowdown"], said["slow_lasts"])
    times = RecoveryTimes(*(said[time.name.removesuffix("_s")] for time in fields(RecoveryTimes)))
    nobody = Handling("", Response(None), Response(None), Response(None))
    detections = _detections(times.step_s, mix.slowdown, said)
    plain = Scenario(job, mix, times, nobody)
    return ways(plain, detections, said["give_up"], said["false_evictions"])


def _detections(
    step_s: float, slowdown: float, said: Mapping[str, float]
) -> list[tuple[str, Detection]]:
    measured = detection(MEASURED_STEP_S, slowdown)
    scaled = detection(step_s, slowdown, said.get("stall_factor"))
    name = f"lightkeeper, {step_s:g} s steps"
    rows = [("lightkeeper, as measured", measured), (name, scaled)]
    if "stall_factor" not in said:
        soon = detection(step_s, slowdown, SHORT_STALL_FACTOR)
        rows.append((f"{name}, stall_factor {SHORT_STALL_FACTOR:g}", soon))
    return rows


@command(
    epilog="\b\nwhat is assumed, in seconds where it is a time:\n"
    + "\n".join(
        f"  {name:<15} {'' if default is None else f'{default:g}':>11}  {about}"
        for name, (default, about) in ASSUMED.items()
    )
)
@option("--case", type=click.Choice(("ft-hsdp",)), help="a published case")
@option("--ranks", type=int, multiple=True, metavar="N",
        help=f"GPUs; again to compare sizes (default: {FT_HSDP.ranks})")  # fmt: skip
@option("--groups", type=int, metavar="N", help="replica groups (12, with --ranks 10)")
@option("--mtbf", metavar="TIME", help="of the whole job: 90s, 3h, 1d")
@option("--assume", multiple=True, metavar="NAME=VALUE", help="one of the numbers listed below")
@as_json
def goodput(
    *,
    case: str | None,
    ranks: tuple[int, ...],
    groups: int | None,
    mtbf: str | None,
    assume: tuple[str, ...],
    as_json: bool,
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
      evidence/measurements.md has the formulas, the source of each number, and its worth.

    examples:
      python -m tests.goodput --case ft-hsdp                      44 % -> 80 % at 98,304 GPUs
      python -m tests.goodput --ranks 16384 --groups 8 --mtbf 3h  my job
      python -m tests.goodput --ranks 1000 --ranks 100000 --assume step=5s --assume restart=4m
      python -m tests.goodput --format json | jq '.ways[] | [.name, .poisson]'
    """
    if case is not None and ranks:
        raise CommandError("--case and --ranks exclude each other")
    numbers, mtbf_s = _assumed(assume, mtbf), None if mtbf is None else _number(mtbf)
    groups = groups or (GROUPS if ranks else FT_HSDP.groups)
    sizes = ranks or (FT_HSDP.ranks,)
    jobs = [_scenarios(size, groups, mtbf_s, numbers) for size in sizes]
    if case is not None:
        answer = _case(list(ft_hsdp()))
    else:
        answer = _job(jobs[0]) if len(jobs) == 1 else _sweep(jobs)
    if as_json:
        print_json(answer.body)
        return
    out = console()
    out.print(text(answer.title, "bold"))
    show_table(out, "", answer.columns, answer.rows)
    for line in answer.more:
        out.print(text(line))


def _body(rows: Sequence[Scenario]) -> dict[str, Any]:
    """One job; keys may be added, never removed."""
    first = rows[0]
    return {
        "job": asdict(first.job), "mix": asdict(first.mix), "times": asdict(first.times),
        "ways": [
            {**asdict(row.handling), "linear": linear(row), "poisson": poisson(row)} for row in rows
        ],
        "eviction_cost_s": eviction(first.times).fleet_s(first),
    }  # fmt: skip


class Answer(NamedTuple):
    """For people, and `body` for programs."""

    body: Any
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: Sequence[str] = ()
    """Lines below the table."""


def _job(scenes: Sequence[Scenario]) -> Answer:
    job = scenes[0].job
    rows = []
    for way in scenes:
        hang = way.handling.hang
        ends = ", the job ends" if hang.takes_job else ""
        rows.append((way.handling.name, f"{linear(way):.2%}", f"{poisson(way):.2%}",
                     _after(hang.after_s) + ends, _after(way.handling.slow.after_s)))  # fmt: skip
    cost_s = eviction(scenes[0].times).fleet_s(scenes[0])
    more = [f"an eviction costs {cost_s:.0f} s of the fleet's time, right or wrong"]
    late = [
        way.handling.name
        for way in scenes
        if way.handling.hang.takes_job and way.handling.name.startswith("lightkeeper")
    ]
    if late:
        more.append(
            f"{late[0]}: a hang is decided later than the survivors give up; lower "
            "stall_factor, or raise TorchFT's timeouts (--assume give_up=...)"
        )
    title = (
        f"effective training time of {job.ranks:,} ranks in {job.groups} groups, a fault every "
        f"{span(job.mtbf_s)}"
    )
    columns = ("way", "linear", "Poisson", "a hang is decided after", "a slow rank goes after")
    return Answer(_body(scenes), title, columns, rows, more)


def _sweep(sweep: Sequence[Sequence[Scenario]]) -> Answer:
    rows = [
        (
            f"{scenes[0].job.ranks:,}",
            span(scenes[0].job.mtbf_s),
            *(f"{poisson(w):.2%}" for w in scenes),
        )
        for scenes in sweep
    ]
    columns = ("ranks", "a fault every", *(way.handling.name for way in sweep[0]))
    return Answer(
        [_body(scenes) for scenes in sweep], "effective training time: Poisson", columns, rows
    )


def _case(scenes: Sequence[tuple[float, Scenario]]) -> Answer:
    rows = []
    for published, way in scenes:
        stop = toll(way, "stop")
        rows.append((way.handling.name, f"{published:.0%}", f"{linear(way):.2%}",
                     f"{poisson(way):.2%}", span(stop.stall_s),
                     span(stop.stall_s + stop.missing_s)))  # fmt: skip
    body = [{"published": published, **_body([way])["ways"][0]} for published, way in scenes]
    columns = ("way", "published", "linear (theirs)", "Poisson", "all stand", "a group is away")
    return Answer(body, "FT-HSDP, arXiv 2602.00277", columns, rows)


def _after(span_s: float | None) -> str:
    return "never" if span_s is None else span(span_s)


def main(words: Sequence[str] | None = None) -> int:
    """The exit status."""
    try:
        goodput.main(words, "python -m tests.goodput", standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
