"""`python -m experiments NAME [--help]`: run an experiment, or write its page again."""

from __future__ import annotations

import sys
from typing import Final

from experiments.campaign.experiment import Campaign
from experiments.campaign.soak import SoakExperiment
from experiments.field.experiment import Field
from experiments.harness import Experiment
from experiments.killing.experiment import KillEach
from experiments.matrix.experiment import Matrix
from experiments.netlab.experiment import Netlab

EXPERIMENTS: Final[dict[str, type[Experiment]]] = {
    made.name: made for made in (Campaign, SoakExperiment, Field, Matrix, KillEach, Netlab)
}


def main() -> int:
    """Exit status: see `Experiment.main`; 2 for a name that there is not."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in EXPERIMENTS:
        print(f"python -m experiments NAME [--help], one of: {', '.join(EXPERIMENTS)}")
        return 2
    return EXPERIMENTS[name]().main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
