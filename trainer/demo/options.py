"""The demo's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer.options import OneLineParser

FAULTS: Final = {
    "hang": "a rank sleeps outside any collective, for ever",
    "gil": "a rank holds the interpreter lock in C, for ever",
    "stop": "a rank is stopped (SIGSTOP)",
    "crash": "a rank is killed (SIGKILL)",
    "slow": "a rank is several times slower from then on",
    "mismatch": "a rank calls another collective than its peers (2 ranks a group)",
    "nan": "a rank's gradient holds NaN from then on",
    "corrupt": "a bit of a rank's weights flips, and nobody is told",
    "mismatch:size": "a rank brings another size than its peers: gloo aborts (2 ranks a group)",
}

_EPILOG = """\
faults:
{faults}

examples:
  lightkeeper demo                                  3 groups x 1 rank: gil, then slow
  lightkeeper demo --groups 2 --ranks-per-group 2   gil, slow, mismatch
  lightkeeper demo --fault stop --format json       one JSON object, last on stdout
  lightkeeper demo --fault gil --without-keeper     what TorchFT does alone
  lightkeeper demo --gate --fault stop              with the gate in front of the Lighthouse
  lightkeeper demo --keep-running                   leaves all up, with URLs to curl

exit status: 0 every fault was found, the right group was evicted and training went on (with
--without-keeper: the report is complete); 1 it was not so; 2 wrong usage; 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run."""

    faults: tuple[str, ...]
    groups: int
    ranks_per_group: int
    keeper: bool
    gate: bool
    short_timeouts: bool
    heartbeat_timeout_ms: int
    json: bool
    keep_running: bool
    run_dir: Path | None
    step_time_s: float
    slow_factor: float

    @property
    def min_replicas(self) -> int:
        """Fewest groups that may train: all but one, and at most two."""
        return min(2, self.groups - 1)


def _bounded(low: float, high: float, kind: type) -> type:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return float(value) if kind is float else int(value)

    return convert  # type: ignore[return-value]  # argparse calls it like a type


def parser() -> argparse.ArgumentParser:
    """The parser of `lightkeeper demo`."""
    faults = "\n".join(f"  {name:<15}{text}" for name, text in FAULTS.items())
    result = OneLineParser(
        prog="lightkeeper demo",
        description="Start a TorchFT fleet on this machine, make a rank sick, and watch "
        "lightkeeper name it, evict its group through the Lighthouse, and training go on.",
        epilog=_EPILOG.format(faults=faults),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add(
        "--fault",
        action="append",
        choices=sorted(FAULTS),
        metavar="KIND",
        dest="faults",
        help="fault to inject; repeat for several (default: gil, slow, and mismatch where "
        "groups have 2 ranks)",
    )
    add(
        "--groups",
        type=_bounded(2, 8, int),
        default=None,
        metavar="N",
        help="replica groups, 2 to 8 (default: 3, or 2 when groups have several ranks)",
    )
    add(
        "--ranks-per-group",
        type=_bounded(1, 4, int),
        default=1,
        metavar="N",
        help="ranks in each group, 1 to 4 (default: 1)",
    )
    add(
        "--without-keeper",
        action="store_true",
        help="same faults, nobody evicts: what TorchFT does alone",
    )
    add(
        "--gate",
        action="store_true",
        help="groups reach the Lighthouse through `lightkeeper gate`, which can keep them out",
    )
    add(
        "--timeouts",
        choices=("default", "short"),
        default="default",
        help="TorchFT's own timeouts: its defaults (60 s), or short ones (8 s collective, "
        "20 s join)",
    )
    add(
        "--heartbeat-timeout",
        type=_bounded(500, 60_000, int),
        default=5000,
        metavar="MS",
        help="the Lighthouse's heartbeat_timeout_ms (default: TorchFT's, 5000)",
    )
    add(
        "--format",
        choices=("text", "json"),
        default="text",
        help="json: one object, last on stdout; progress goes to stderr",
    )
    add(
        "--keep-running",
        action="store_true",
        help="leave everything up afterwards until Ctrl-C, and print what to curl",
    )
    add(
        "--run-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="where logs, store and token go (default: a new folder under /tmp)",
    )
    add(
        "--step-time",
        type=_bounded(0, 5, float),
        default=0.2,
        metavar="SECONDS",
        help="shortest time of a training step, 0 to 5 (default: 0.2, calm on 2 cores)",
    )
    add(
        "--slow-factor",
        type=_bounded(2, 50, float),
        default=6.0,
        metavar="X",
        help="how many times slower a slow rank is, 2 to 50 (default: 6)",
    )
    return result


def parse(argv: Sequence[str] | None = None) -> DemoOptions:
    """Options from the command line; wrong ones end the process with status 2."""
    arguments_parser = parser()
    args = arguments_parser.parse_args(argv)
    default = ("gil", "slow", "mismatch") if args.ranks_per_group > 1 else ("gil", "slow")
    faults = tuple(args.faults or default)
    if any(fault.startswith("mismatch") for fault in faults) and args.ranks_per_group < 2:
        arguments_parser.error(
            "--fault mismatch needs a collective inside the group: add --ranks-per-group 2"
        )
    groups = args.groups or (2 if args.ranks_per_group > 1 else 3)
    if "corrupt" in faults and groups < 3:
        arguments_parser.error(
            "--fault corrupt in two groups: who of two is right cannot be told; add --groups 3"
        )
    return DemoOptions(
        faults=faults,
        groups=groups,
        ranks_per_group=args.ranks_per_group,
        keeper=not args.without_keeper,
        gate=args.gate,
        short_timeouts=args.timeouts == "short",
        heartbeat_timeout_ms=args.heartbeat_timeout,
        json=args.format == "json",
        keep_running=args.keep_running,
        run_dir=args.run_dir,
        step_time_s=args.step_time,
        slow_factor=args.slow_factor,
    )
