"""Rank: what one rank does, by its own account; everything leads to its debug pages."""

from __future__ import annotations

from typing import Any, Final

from dashboards.colours import BLUE, GREEN, ORANGE, RED, UP, YELLOW
from dashboards.frame import Board, rank_links
from dashboards.panels import Column, Query, heat, lines, rows, states
from dashboards.selectors import RANK, on_host, shown

_LINKS: Final = rank_links(series=True)
_LEGEND: Final = "{{replica_group}}.{{rank}}"
_WHO: Final = (
    Column("job_id", "job"),
    Column("replica_group", "group"),
    Column("rank", links=rank_links(series=False)),
)


def rank() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-rank",
        title="Lightkeeper: rank",
        about="One rank, or a few, by their own account: phases, step times, the head of the "
        "flight record, loss. Choose group and rank above; 'All' shows the first few. Its data "
        "come from the ranks' own pages, which Prometheus scrapes through the monitor's list.",
        of_ranks=True,
        rows=(
            ("Who is it, and does it live?", _who()),
            ("Which collective is it in?", _collectives()),
            ("What does it do in a step, and is it sound?", _step()),
        ),
    )


def _own(name: str) -> str:
    return f"lightkeeper_rank_{name}{{{RANK}}}"


def _who() -> list[Any]:
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    return [
        rows(
            "Ranks",
            [
                shown(info, keep="host, pid"),
                shown(_own("alive")),
                shown(_own("step")),
                f"time() - ({shown(_own('last_commit_timestamp_seconds'))})",
            ],
            [
                *_WHO,
                Column("host"),
                Column("pid"),
                Column("Value #B", "process", values=UP),
                Column("Value #C", "step"),
                Column(
                    "Value #D",
                    "last commit",
                    unit="s",
                    decimals=1,
                    levels={30.0: ORANGE, 120.0: RED},
                    base=GREEN,
                ),
            ],
            hidden=("Value #A",),
            width=24,
            empty="no such rank is scraped",
            says="Who and where. An old last commit: it hangs, waits or is dead. Click the number "
            "of a rank for its page, stacks, flight record and state, through the monitor: your "
            "browser need not reach the rank.",
        ),
    ]


def _collectives() -> list[Any]:
    lag = _own("collective_lag")
    by = "max by (job_id, replica_group, rank, process_group)"
    unfinished = f"and on (job_id, replica_group, rank, process_group) topk($topn, {by} ({lag}))"
    return [
        rows(
            "Head of the flight record",
            [
                f"{by} ({_own('collective_enqueued')}) {unfinished}",
                f"{by} ({_own('collective_completed')}) {unfinished}",
                f"topk($topn, {by} ({lag}))",
            ],
            [
                *_WHO,
                Column("process_group", "process group"),
                Column("Value #A", "entered"),
                Column("Value #B", "left"),
                Column("Value #C", "inside", levels={1.0: ORANGE}),
            ],
            sort="inside",
            height=9,
            empty="no collective seen",
            says="Sequence ids of the last collective that each rank entered and left, by "
            "process group. One rank's 'entered' lower than its peers': it never came; click it "
            "for its flight record.",
        ),
        lines(
            "Entered and not left",
            Query(shown(lag), _LEGEND),
            height=9,
            unit="suffix: collectives",
            links=_LINKS,
            says="Collectives that a rank is inside of. A line that stays up while its last commit "
            "grows old is a hang: ask the flight record for who is missing.",
        ),
    ]


def _step() -> list[Any]:
    phase = f"rate({_own('phase_seconds_total')}[$__rate_interval])"
    grew = f"increase({_own('step_seconds_bucket')}[$__rate_interval])"
    return [
        lines(
            "Phases",
            Query(f"avg by (phase) ({on_host(phase)})", "{{phase}}"),
            stacked=True,
            unit="percentunit",
            colours={"communication": YELLOW, "forward": GREEN, "backward": BLUE},
            says="Share of the time in each finished phase, mean of the chosen ranks. "
            "'communication' is waiting for others. A gap: it has been in one phase since; "
            "its state page says in which.",
        ),
        heat(
            "Step times",
            Query(f"sum by (le) ({on_host(grew)})", "{{le}}"),
            unit="s",
            buckets=True,
            value="steps",
            says="How many attempts took how long, of the chosen ranks. A second band above the "
            "first: pauses, as for checkpoints or data; see which phase grows with it.",
        ),
        lines(
            "Loss",
            Query(shown(_own("loss")), _LEGEND),
            floor=None,
            links=_LINKS,
            says="Loss of each rank. One far from the rest reads bad data or computes wrongly; a "
            "gap is a loss that is not finite: its host may be broken.",
        ),
        states(
            "Loss and gradient finite",
            Query(shown(_own("finite")), _LEGEND),
            values={"0": ("✕ not finite", RED), "1": ("● finite", GREEN)},
            empty="not told",
            links=_LINKS,
            says="Was the last attempt's loss and gradient finite? Red on one rank alone: "
            "suspect its host. Red everywhere: the model diverges.",
        ),
    ]
