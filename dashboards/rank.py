"""Rank: what one rank does, by its own account; everything leads to its debug pages."""

from __future__ import annotations

from typing import Any

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, RED, UP, YELLOW
from dashboards.frame import Board, rank_links
from dashboards.grids import Column, heat, rows
from dashboards.panels import Query, lines, states, tile
from dashboards.selectors import RANK, on_host, shown

_SERIES = rank_links(series=True)
_LEGEND = "{{replica_group}}.{{rank}}"


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
            ("What does it do in a step?", _step()),
            ("Which collective is it in?", _collectives()),
            ("Does it learn, and is it sound?", _soundness()),
        ),
    )


def _own(name: str, more: str = "") -> str:
    return f"lightkeeper_rank_{name}{{{RANK}{more}}}"


def _who() -> list[Any]:
    each = "max by (job_id, replica_group, rank)"  # of all processes that a rank had
    alive, commit = _own("alive"), _own("last_commit_timestamp_seconds")
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    return [
        tile(
            "Ranks that live",
            Query(f"avg({each} ({on_host(alive)}))"),
            unit="percentunit",
            decimals=0,
            base=RED,
            levels={1.0: GREEN},
            width=4,
            says="Share of the chosen ranks whose process lives, by its WorkerServer. Below "
            "100 %: the table beside leads to the dead rank's last record and stacks.",
        ),
        tile(
            "Since its last commit",
            Query(f"time() - min({each} ({on_host(commit)}))"),
            unit="s",
            decimals=0,
            levels={30.0: ORANGE, 120.0: RED},
            width=4,
            says="Of the chosen rank that committed longest ago. Growing: it hangs, waits or is "
            "dead; its stacks say where.",
        ),
        rows(
            "Ranks",
            [
                Query(shown(info, keep="host, pid")),
                Query(shown(alive)),
                Query(shown(_own("step"))),
                Query(f"time() - ({shown(commit)})"),
            ],
            [
                Column("job_id", "job"),
                Column("replica_group", "group"),
                Column("rank", links=rank_links(series=False)),
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
            width=16,
            height=5,
            empty="no such rank is scraped",
            says="Who and where. Click the number of a rank for its page, stacks, flight record "
            "and state, through the monitor: your browser need not reach the rank.",
        ),
    ]


def _step() -> list[Any]:
    phase = f"rate({_own('phase_seconds_total')}[$__rate_interval])"
    bucket = f"rate({_own('step_seconds_bucket')}[$__rate_interval])"
    grew = f"increase({_own('step_seconds_bucket')}[$__rate_interval])"
    mean = (
        f"rate({_own('step_seconds_sum')}[$__rate_interval]) / "
        f"(rate({_own('step_seconds_count')}[$__rate_interval]) > 0)"
    )
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
        lines(
            "Step time by rank",
            Query(shown(mean), _LEGEND),
            unit="s",
            links=_SERIES,
            says="Mean seconds of an attempt of a step. Ranks of one quorum step together: who "
            "is slow shows on Stragglers, not here.",
        ),
        heat(
            "Step times",
            Query(f"sum by (le) ({on_host(grew)})", "{{le}}"),
            unit="s",
            buckets=True,
            scheme="Blues",
            width=12,
            height=8,
            value="steps",
            says="How many attempts took how long, of the chosen ranks. A second band above the "
            "first: pauses, as for checkpoints or data; see which phase grows with it.",
        ),
        lines(
            "Step time, quantiles",
            Query(f"histogram_quantile(0.5, sum by (le) ({on_host(bucket)}))", "median"),
            Query(f"histogram_quantile(0.95, sum by (le) ({on_host(bucket)}))", "95 %"),
            unit="s",
            colours={"median": GREEN, "95 %": ORANGE},
            says="Of all attempts of the chosen ranks. 95 % far above the median: some steps "
            "stumble; look at the phases at those moments.",
        ),
    ]


def _collectives() -> list[Any]:
    lag = _own("collective_lag")
    entered, left = _own("collective_enqueued"), _own("collective_completed")
    by = "max by (job_id, replica_group, rank, process_group)"
    entering = f"sum by (job_id, replica_group, rank) (deriv({entered}[$__rate_interval]) > 0)"
    unfinished = f"and on (job_id, replica_group, rank, process_group) topk($topn, {by} ({lag}))"
    return [
        rows(
            "Head of the flight record",
            [
                Query(f"{by} ({entered}) {unfinished}"),
                Query(f"{by} ({left}) {unfinished}"),
                Query(f"topk($topn, {by} ({lag}))"),
            ],
            [
                Column("job_id", "job"),
                Column("replica_group", "group"),
                Column("rank", links=rank_links(series=False)),
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
            links=_SERIES,
            says="Collectives that a rank is inside of. A line that stays up while 'Attempts and "
            "commits' stands still is a hang: ask the flight record for who is missing.",
        ),
        lines(
            "Collectives entered a second",
            Query(shown(entering), _LEGEND),
            unit="suffix: /s",
            links=_SERIES,
            says="How fast its sequence ids grow. Peers go alike; the first that fell to zero is "
            "where to look.",
        ),
        lines(
            "Seconds in communication, of each second",
            Query(shown(f"rate({_own('communication_seconds_total')}[$__rate_interval])"), _LEGEND),
            unit="percentunit",
            links=_SERIES,
            says="Share of the time in which a rank waits for others, the running wait included. "
            "The one that does not wait while the others do holds them up.",
        ),
    ]


def _soundness() -> list[Any]:
    def pace(name: str) -> str:
        return f"rate({_own(name)}[$__rate_interval])"

    return [
        lines(
            "Loss",
            Query(shown(_own("loss")), _LEGEND),
            floor=None,
            links=_SERIES,
            says="Loss of each rank. One far from the rest reads bad data or computes wrongly; a "
            "gap is a loss that is not finite: its host may be broken.",
        ),
        lines(
            "Attempts and commits",
            Query(f"avg({on_host(pace('attempts_total'))})", "attempts"),
            Query(f"avg({on_host(pace('commits_total'))})", "commits"),
            Query(f"avg({on_host(pace('commit_failures_total'))})", "without a commit"),
            unit="suffix: steps/s",
            colours={"attempts": GREY, "commits": GREEN, "without a commit": RED},
            says="Steps begun and committed a second, mean of the chosen ranks. Attempts without "
            "commits: the quorum changed, or an error was caught; see its log.",
        ),
        states(
            "Loss and gradient finite",
            Query(shown(_own("finite")), _LEGEND),
            values={"0": ("✕ not finite", RED), "1": ("● finite", GREEN)},
            empty="not told",
            links=_SERIES,
            says="Was the last attempt's loss and gradient finite? Red on one rank alone: "
            "suspect its host. Red everywhere: the model diverges.",
        ),
        lines(
            "Tokens a second",
            Query(shown(pace("tokens_total")), _LEGEND),
            unit="suffix: tokens/s",
            links=_SERIES,
            says="Tokens that each rank trains on. One lower than its peers at the same pace of "
            "steps gets smaller batches: look at its data loader.",
        ),
    ]
