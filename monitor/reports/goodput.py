"""What `lightkeeper goodput` says: JSON for programs, tables and sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from monitor.goodput.cases import Published
from monitor.goodput.compare import Outcome
from monitor.goodput.formulas import (
    break_even_precision,
    eviction_cost_s,
    mean_toll,
    toll,
)
from monitor.goodput.scenario import DAY_S, FaultKind, Scenario

SCHEMA: Final = 1
_SOURCES: Final = "formulas, and the source of each number: docs/goodput.md"
RIVAL: Final = 2
"""Number of the way with which lightkeeper is compared: TorchFT's timeouts."""


# -- JSON ------------------------------------------------------------------------------------------


def job_body(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One job; keys may be added, none goes."""
    one = outcomes[0].scenario
    return {
        "schema": SCHEMA,
        "job": {
            "ranks": one.job.ranks,
            "groups": one.job.groups,
            "mtbf_s": _round(one.job.mtbf_s),
            "rank_mtbf_h": _round(one.job.rank_mtbf_h),
        },
        "mix": asdict(one.mix),
        "times": asdict(one.times),
        "spares": asdict(one.spares),
        "ways": [_way(outcome) for outcome in outcomes],
        "eviction": {
            "cost_fleet_s": _round(eviction_cost_s(one)),
            "cost_of_one_a_day": _round(eviction_cost_s(one) / DAY_S),
            "slow_rank_fleet_s": _round(one.mix.drag * one.mix.slow_lasts_s),
            "break_even_precision": _round(break_even_precision(one)),
        },
    }


def sweep_body(sweep: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    """A job at several sizes."""
    return {"schema": SCHEMA, "sweep": [job_body(outcomes) for outcomes in sweep]}


def case_body(rows: Sequence[Published], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A published case."""
    return {
        "schema": SCHEMA,
        "case": [
            {"published": row.goodput, **_way(one)} for row, one in zip(rows, outcomes, strict=True)
        ],
    }


def _way(one: Outcome) -> dict[str, Any]:
    handling = one.scenario.handling
    return {
        "name": one.name,
        "linear": _round(one.linear),
        "poisson": _round(one.poisson),
        "detect_stop_s": handling.stop.after_s,
        "detect_hang_s": handling.hang.after_s,
        "hang_takes_job": handling.hang.takes_job,
        "slow_goes_after_s": _round(handling.slow.after_s),
        "false_per_day": handling.false_per_day,
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


# -- text ------------------------------------------------------------------------------------------


def print_job(out: Console, outcomes: Sequence[Outcome], kept: int) -> None:
    """One job: the ways beside each other, where the time goes, what evicting is worth.

    `kept`: the number of the outcome with lightkeeper that is explained.
    """
    out.print(Text(_job(outcomes[0].scenario)))
    grid = _grid("effective training time", "way", "linear", "Poisson",
                 "a hang is decided after", "a slow rank goes after")  # fmt: skip
    for one in outcomes:
        handling = one.scenario.handling
        hang = _seconds(handling.hang.after_s) + (
            ", the job ends" if handling.hang.takes_job else ""
        )
        grid.add_row(one.name, _share(one.linear), _share(one.poisson), hang,
                     _seconds(handling.slow.after_s))  # fmt: skip
    out.print(grid)
    explained = outcomes[kept].scenario
    out.print(_tolls(explained))
    for line in (*_sentences(outcomes, kept), _SOURCES):
        out.print(Text(line))


def print_sweep(out: Console, sweep: Sequence[Sequence[Outcome]]) -> None:
    """Sizes down, ways across: the Poisson closed form."""
    first = sweep[0]
    out.print(Text(_faults(first[0].scenario)))
    grid = _grid("effective training time in %: Poisson", "ranks",
                 "groups", "a fault every", *(one.name for one in first))  # fmt: skip
    for outcomes in sweep:
        job = outcomes[0].scenario.job
        cells = [f"{one.poisson * 100:.2f}" for one in outcomes]
        grid.add_row(f"{job.ranks:,}", str(job.groups), _seconds(job.mtbf_s), *cells)
    out.print(grid)
    for line in (_worth(first[0].scenario), *_pays(sweep), _SOURCES):
        out.print(Text(line))


def print_case(out: Console, rows: Sequence[Published], outcomes: Sequence[Outcome]) -> None:
    """A published case beside ours."""
    out.print(Text(_job(outcomes[0].scenario)))
    grid = _grid("FT-HSDP, arXiv 2602.00277", "way", "published", "linear (theirs)", "off by",
                 "Poisson", "all stand", "a group is away")  # fmt: skip
    for row, one in zip(rows, outcomes, strict=True):
        found = toll(row.scenario, FaultKind.STOP)
        grid.add_row(
            row.name, f"{row.goodput * 100:.0f} %", _share(one.linear),
            f"{(one.linear - row.goodput) * 100:+.1f} points", _share(one.poisson),
            _seconds(found.stall_s), _seconds(found.stall_s + found.missing_s),
        )  # fmt: skip
    out.print(grid)
    moves = " and ".join(
        f"{one.name} by {(one.poisson - one.linear) * 100:.1f}" for one in outcomes
    )
    out.print(Text(
        "linear: one fault in each MTBF, none during a recovery; Poisson: faults at any moment. "
        f"That moves {moves} points."
    ))  # fmt: skip
    out.print(Text(_SOURCES))


def _tolls(scenario: Scenario) -> Grid:
    grid = _grid(f"what one fault takes, {scenario.handling.name}", "kind", "share", "all stand",
                 "group away", "at a slow pace", "fleet's time", "of all lost")  # fmt: skip
    mix, groups = scenario.mix, scenario.job.groups
    total_s = mean_toll(scenario).fleet_s(groups, mix.drag)
    for kind in FaultKind:
        found, share = toll(scenario, kind), mix.share(kind)
        fleet_s = found.fleet_s(groups, mix.drag)
        lost = share * fleet_s / total_s if total_s > 0.0 else 0.0
        grid.add_row(str(kind), f"{share * 100:.0f} %", _seconds(found.stall_s),
                     _seconds(found.missing_s), _seconds(found.dragged_s), _seconds(fleet_s),
                     f"{lost * 100:.0f} %")  # fmt: skip
    return grid


def _sentences(outcomes: Sequence[Outcome], kept: int) -> Iterator[str]:
    explained, rival = outcomes[kept], outcomes[RIVAL]
    yield _worth(explained.scenario)
    gained = explained.poisson - rival.poisson
    each = eviction_cost_s(explained.scenario) / DAY_S
    against = f", as much as {gained / each:.1f} of these cost" if gained > 0.0 else ""
    yield (
        f"one false eviction a day costs {each * 100:.2f} points; {explained.name} gains "
        f"{gained * 100:.2f} on {rival.name}{against}"
    )
    late = [one.name for one in outcomes[RIVAL + 1 :] if one.scenario.handling.hang.takes_job]
    if late:
        yield (
            f"{late[0]}: a hang is decided later than the survivors give up; lower stall_factor, "
            "or raise TorchFT's timeouts (--give-up)"
        )
    if explained.scenario.handling.slow.after_s is None and explained.scenario.mix.slow > 0.0:
        yield (
            "a slow rank is never evicted: it is slower by less than straggler_ratio (1.5), or "
            "five steps last longer than window_limit_s (120)"
        )


def _pays(sweep: Sequence[Sequence[Outcome]]) -> Iterator[str]:
    """From which size on a false eviction a day costs less than lightkeeper gains."""
    last = sweep[-1][-1].scenario.handling
    if last.false_per_day <= 0.0:
        return
    sizes = [row[0].scenario.job.ranks for row in sweep if row[-1].poisson > row[RIVAL].poisson]
    told = f"with {last.false_per_day:g} false a day lightkeeper "
    if not sizes:
        yield f"{told}loses more than it gains at each of these sizes"
    elif len(sizes) == len(sweep):
        yield f"{told}gains at each of these sizes"
    else:
        yield f"{told}loses more than it gains below {min(sizes):,} ranks"


def _worth(scenario: Scenario) -> str:
    cost_s, mix = eviction_cost_s(scenario), scenario.mix
    gain_s, precision = mix.drag * mix.slow_lasts_s, break_even_precision(scenario)
    told = f"an eviction costs {cost_s:.0f} s of the fleet's time, right or wrong; "
    left = f"a slow rank that is left alone {gain_s:.0f} s: "
    if precision is None:
        return f"{told}{left}to evict one never pays"
    return f"{told}{left}more than {precision * 100:.0f} % of evictions for slowness must be right"


def _job(scenario: Scenario) -> str:
    job = scenario.job
    return (
        f"{job.ranks:,} ranks in {job.groups} groups of {job.group_size:,}; a fault every "
        f"{_seconds(job.mtbf_s)}; {_faults(scenario)}"
    )


def _faults(scenario: Scenario) -> str:
    job, mix = scenario.job, scenario.mix
    slow = f" (x{mix.slowdown:g} for {_seconds(mix.slow_lasts_s)})" if mix.slow > 0.0 else ""
    hosts = scenario.spares.hosts
    spares = (
        ""
        if hosts is None
        else f"; {hosts} spare hosts, repaired in " + _seconds(scenario.spares.repair_s)
    )
    return (
        f"{job.rank_mtbf_h:,.0f} rank-hours a fault: {mix.stop * 100:.0f} % fail-stop, "
        f"{mix.hang * 100:.0f} % hang, {mix.slow * 100:.0f} % slow{slow}{spares}"
    )


def _share(value: float) -> str:
    return f"{value * 100:.2f} %"


def _seconds(span_s: float | None) -> str:
    if span_s is None:
        return "never"
    if span_s < 600.0:
        return f"{span_s:.3g} s"
    if span_s < 7200.0:
        return f"{span_s / 60.0:.3g} min"
    return f"{span_s / 3600.0:.3g} h" if span_s < 2 * DAY_S else f"{span_s / DAY_S:.3g} d"


def _grid(title: str, *columns: str) -> Grid:
    made = Grid(title=title, title_justify="left", header_style="bold", expand=False)
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", justify="left" if number == 0 else "right")
    return made
