"""The demo's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer.options import OneLineParser, add_options, option

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
  lightkeeper demo --port 8470 --keep-running       where `lightkeeper status` looks

exit status: 0 every fault was found, the right group was evicted and training went on (with
--without-keeper: the report is complete); 1 it was not so; 2 wrong usage; 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run."""

    faults: tuple[str, ...] = option(
        "fault to inject; repeat for several (default: gil, slow, and mismatch where groups have "
        "2 ranks)",
        flag="--fault", action="append", choices=sorted(FAULTS), metavar="KIND",
    )  # fmt: skip
    groups: int = option(
        "replica groups, 2 to 8 (default: 3, or 2 when groups have several ranks)", least=2, most=8
    )
    ranks_per_group: int = option("ranks in each group, 1 to 4", 1, least=1, most=4)
    keeper: bool = option(
        "same faults, nobody evicts: what TorchFT does alone",
        default=True, flag="--without-keeper", action="store_false",
    )  # fmt: skip
    gate: bool = option(
        "groups reach the Lighthouse through `lightkeeper gate`, which can keep them out",
        default=False,
    )
    heartbeat_timeout_ms: int = option(
        "the Lighthouse's heartbeat_timeout_ms (default: TorchFT's, 5000)", 5000,
        least=500, most=60_000, flag="--heartbeat-timeout", metavar="MS",
    )  # fmt: skip
    format: str = option(
        "json: one object, last on stdout; progress goes to stderr",
        "text",
        choices=("text", "json"),
    )
    port: int = option(
        "of the monitor; 8470 is where the shipped Prometheus configuration, `lightkeeper status` "
        "and the other commands look (default: a free one)", 0, least=0, most=65_535,
    )  # fmt: skip
    keep_running: bool = option(
        "leave everything up afterwards until Ctrl-C, and print what to curl", default=False
    )
    run_dir: Path | None = option(
        "where logs, store and token go (default: a new folder under /tmp)", metavar="DIR"
    )
    step_time_s: float = option(
        "shortest time of a training step, 0 to 5 (default: 0.2, calm on 2 cores)", 0.2, most=5
    )

    @property
    def min_replicas(self) -> int:
        """Fewest groups that may train: all but one, and at most two."""
        return min(2, self.groups - 1)


def parse(argv: Sequence[str] | None = None) -> DemoOptions:
    """Options from the command line; wrong ones end the process with status 2."""
    faults = "\n".join(f"  {name:<15}{text}" for name, text in FAULTS.items())
    parser = OneLineParser(
        prog="lightkeeper demo",
        description="Start a TorchFT fleet on this machine, make a rank sick, and watch "
        "lightkeeper name it, evict its group through the Lighthouse, and training go on.",
        epilog=_EPILOG.format(faults=faults),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, DemoOptions)
    args = parser.parse_args(argv)
    several = args.ranks_per_group > 1
    args.faults = tuple(
        args.faults or (("gil", "slow", "mismatch") if several else ("gil", "slow"))
    )
    args.groups = args.groups or (2 if several else 3)
    if any(fault.startswith("mismatch") for fault in args.faults) and not several:
        parser.error(
            "--fault mismatch needs a collective inside the group: add --ranks-per-group 2"
        )
    if "corrupt" in args.faults and args.groups < 3:
        parser.error(
            "--fault corrupt in two groups: who of two is right cannot be told; add --groups 3"
        )
    return DemoOptions(**vars(args))
