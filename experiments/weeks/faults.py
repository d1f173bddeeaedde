"""What goes wrong in a fleet of 16,384 GPUs, how often, and how it shows; each with the truth.

Interruptions are Meta's, 419 in 54 days on 16,384 GPUs, by cause ("The Llama 3 Herd of Models",
arXiv 2407.21783, table 5; the shares printed there, such as 30.1 % for 148 faulty GPUs, do not all
follow from its counts: the counts are used). Planned ones beside them: 47 (same section). Ranks and
links that are slow: they last from tens of seconds to ten hours and delay a job 1.34 times (Falcon,
arXiv 2410.12588; Greyhound, USENIX ATC 25). A host that failed fails again: "lemon nodes"
(Kokolis et al., HPCA 2025, arXiv 2410.21680). How a cause shows in a rank nobody has published by
numbers: `SHOWS` are our weights.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400.0

CAUSES: Final[Mapping[str, int]] = {
    "faulty GPU": 148, "GPU HBM3 memory": 72, "software bug": 54, "network switch or cable": 35,
    "host maintenance": 32, "GPU SRAM": 19, "GPU system processor": 17, "NIC": 7,
    "NCCL watchdog timeout": 7, "silent data corruption": 6, "GPU thermal or sensor": 6, "SSD": 3,
    "power supply": 3, "server chassis": 2, "IO expansion board": 2, "dependency": 2, "CPU": 2,
    "system memory": 2,
}  # fmt: skip
_CAUSES_DAYS: Final = 54
_CAUSES_RANKS: Final = 16_384

SHOWS: Final[Mapping[str, Mapping[str, float]]] = {
    "faulty GPU": {"crash": 5, "left behind": 1, "hang": 3, "kernel": 2, "straggler": 1},
    "GPU HBM3 memory": {"crash": 8, "left behind": 1, "nan": 1},
    "software bug": {"crash": 5, "left behind": 1, "hang": 3, "mismatch": 2, "kernel": 1, "nan": 1},
    "network switch or cable": {"jam": 4, "slow link": 2, "slow network": 2, "host gone": 1},
    "host maintenance": {"drained": 3, "drained in part": 1},
    "GPU SRAM": {"crash": 3, "left behind": 1, "hang": 1},
    "GPU system processor": {"disk wait": 2, "kernel": 1},
    "NIC": {"jam": 2, "slow link": 1},
    "NCCL watchdog timeout": {"jam": 1},
    "silent data corruption": {"corrupt": 1},
    "GPU thermal or sensor": {"straggler": 1},
    "SSD": {"disk wait": 1, "data late": 1},
    "power supply": {"host gone": 1},
    "server chassis": {"host gone": 1},
    "IO expansion board": {"host gone": 1, "hang": 1},
    "dependency": {"data away": 1, "Lighthouse restarts": 1},
    "CPU": {"host gone": 1, "stopped": 1},
    "system memory": {"crash": 1, "host gone": 1},
}
"""Weights of how a cause shows."""

HARDWARE: Final = frozenset(CAUSES) - {"software bug", "host maintenance", "dependency",
                                       "NCCL watchdog timeout"}  # fmt: skip
AGAIN: Final = 0.3
"""Share of faults of hardware that come again on the same host, minutes after the group is back."""

OFTEN: Final[Mapping[str, float]] = {
    "straggler": 1.0, "slow link": 0.3, "slow network": 0.3, "planned": 47 / 54,
    "checkpoint": 4.0, "evaluation": 3.0, "undeclared pause": 1.5, "data late": 2.0,
    "data away": 0.5, "stalled CPU": 2.0, "garbage collection": 2.0, "sidecar gone": 1.0,
    "partition": 0.5, "Lighthouse restarts": 0.3, "monitor restarts": 1.0, "clock step": 0.5,
    "monitor late": 1.0, "nothing": 2.0,
}  # fmt: skip
"""Times a day in a fleet of this size, beside the interruptions; all but the first three are no
fault of any rank. `nothing`: a healthy window, watched."""

STOPS: Final = frozenset({"left behind", "hang", "kernel", "mismatch", "jam", "host gone",
                          "disk wait", "stopped", "drained in part"})  # fmt: skip
"""Everybody waits until somebody puts the group out."""
WORTHY: Final = STOPS | {"nan", "corrupt"}
"""To be acted on, always; a straggler only if it lasts."""
NOBODY: Final = frozenset(OFTEN) - {"straggler", "slow link", "planned"} | {"data away"}
"""No rank is to blame."""


@dataclass(frozen=True)
class Fault:
    """One thing that happens."""

    at_s: float
    """Virtual seconds since the start."""
    shows: str
    cause: str
    group: int
    rank: int
    amount: float = 0.0
    """Factor of a straggler, seconds of anything else."""
    lasts_s: float = 0.0
    again: bool = False
    """Comes again on the same host."""

    @property
    def worthy(self) -> bool:
        """Whether somebody has to be evicted for it. A slow rank within two minutes of windows
        and a cost of 15 s can be judged from some five minutes on.
        """
        slow = self.shows == "straggler" and self.amount >= 1.6 and self.lasts_s >= 900
        return slow or self.shows in WORTHY


def timeline(seed: int, days: float, ranks: int, groups: int, size: int) -> list[Fault]:
    """Everything that happens, in order; `groups` are those that are simulated, of `size` ranks."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    nth = 0
    scale = ranks / _CAUSES_RANKS

    def poisson(a_day: float) -> list[float]:
        at_s, times = 600.0, []
        while (at_s := at_s + chance.expovariate(a_day / DAY_S)) < days * DAY_S:
            times.append(at_s)
        return times

    rates = [(cause, n / _CAUSES_DAYS * scale) for cause, n in CAUSES.items()]
    rates += [(f"- {name}", often * max(scale, 1 / 16)) for name, often in OFTEN.items()]
    for cause, a_day in rates:
        for at_s in poisson(a_day):
            weights = SHOWS.get(cause, {cause.removeprefix("- "): 1.0})
            shows = chance.choices(list(weights), list(weights.values()))[0]
            shows = "drained" if shows == "planned" else shows
            nth += 1
            lasts_s = 10 ** chance.uniform(1.5, 4.55)  # tens of seconds to ten hours
            amount = {
                "straggler": 1 + 10 ** chance.uniform(-0.7, 0.4),
                "slow link": chance.uniform(1.0, 6.0), "slow network": chance.uniform(1.0, 6.0),
                "checkpoint": chance.uniform(15, 55), "evaluation": chance.uniform(30, 90),
                "undeclared pause": chance.uniform(8, 25), "data late": chance.uniform(3, 14),
                "data away": chance.uniform(15, 50), "stalled CPU": chance.uniform(1, 3.5),
                "garbage collection": chance.uniform(2, 7), "sidecar gone": chance.uniform(10, 120),
                "partition": chance.uniform(8, 60), "monitor late": chance.uniform(3, 12),
                "clock step": chance.choice((-3600.0, -30.0, 5.0, 3600.0)),
            }.get(shows, 0.0)  # fmt: skip
            again = cause in HARDWARE and shows != "drained" and chance.random() < AGAIN
            faults.append(Fault(at_s, shows, cause, nth % groups, chance.randrange(size), amount,
                               lasts_s, again))  # fmt: skip
    return sorted(faults, key=lambda fault: fault.at_s)
