"""Everything that is true of the simulated fleet at one moment."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.names import RankName, ReplicaId
from lightkeeper.monitor.model.observation import Failure
from lightkeeper.worker_server.wire import SOURCE_REPORTER
from tests.monitor.fleet.rank import START_S, SimRank
from tests.monitor.fleet.script import At


class FleetState:
    """G groups of W ranks under one Lighthouse, and the clock."""

    def __init__(
        self,
        groups: int | Sequence[str] = 3,
        world_size: int = 1,
        script: Sequence[At] = (),
        *,
        noise: float = 0.0,
        seed: int = 0,
        tick_s: float = 1.0,
        relaunch: bool = True,
        pace: float = 1.0,
        source: str | None = SOURCE_REPORTER,
        across: bool = False,
        vote_every: int = 1,
    ) -> None:
        names = [f"rg_{n}" for n in range(groups)] if isinstance(groups, int) else list(groups)
        self.now_s = START_S
        self.tick = 0
        self.tick_s = tick_s
        self.noise = noise
        self.pace = pace
        self.source = source
        """Who tells the steps; None: nobody does, the ranks only attached."""
        self.across = across
        """Whether heads show the collectives across groups."""
        self.vote_every = vote_every
        """Steps from vote to vote: more than one with LocalSGD and DiLoCo."""
        self.random = random.Random(seed)
        self.script = sorted(script, key=lambda line: line.at_s)
        self.groups: dict[str, list[SimRank]] = {}
        self.silent_until: dict[RankName, tuple[float, Failure]] = {}
        self.jammed_until_s: dict[str, float] = {}
        self.link_s: dict[str, float] = {}
        self.network_s = 0.0
        self.lighthouse_away_until_s = 0.0
        self.no_quorum_until_s = 0.0
        self.failing: dict[str, float] = {}
        self.erring: set[str] = set()
        self.outside: dict[str, float] = {}
        self.late_ticks: list[float] = []
        self.quorum_id = 1
        self.quorum: set[str] = set(names)
        self.released: dict[str, int] = {}
        self.heartbeat_s: dict[ReplicaId, float] = {}
        self.evictions: dict[str, Eviction] = {}
        self.relaunch = relaunch
        self.relaunch_at_s: dict[str, float] = {}
        self.tells_waits = False
        """Whether ranks tell that and how long they wait, as TorchFT's own calls show it."""
        self.asynchronous = False
        """Whether collectives across groups are launched, and waited for where nobody sees it."""
        self.on_nccl = False
        """Whether collectives within groups are C++'s on GPUs, so that only NCCL's recorder has
        them."""
        self.nccl_heads_after_s = 0.0
        """Heads of NCCL's are told of ranks that stand for so long; 0: of all."""
        self.gpu_stands: set[RankName] = set()
        """Ranks on NCCL whose GPU starts nothing that it is given."""
        self.ghosts: dict[ReplicaId, bool] = {}
        """Lives of groups that no WorkerServer reports, and whether they hang."""
        self.evictor_works = True
        self.kept_out: set[str] = set()
        """Groups that launchers may not start."""
        self.faulted: set[str] = set()
        self.flaws = 0
        self.votes = True
        """Whether groups vote against the commit of what is not finite."""
        self.losses = False
        """Whether ranks report a loss."""
        self.fingerprint_every = 0
        """Steps between two fingerprints; 0: none."""
        for name in names:
            self.groups[name] = [
                SimRank(name, i, world_size, host=f"host-{name}", phase_since_s=self.now_s)
                for i in range(world_size)
            ]

    def ranks(self) -> list[SimRank]:
        return [rank for ranks in self.groups.values() for rank in ranks]

    def rank(self, name: str) -> SimRank:
        return next(rank for rank in self.ranks() if rank.name == name)

    def _changes_by_itself(self) -> bool:
        """Something ends, or is over, at a time of its own."""
        return bool(
            self.ghosts
            or self.jammed_until_s
            or self.link_s
            or self.network_s
            or self.outside
            or self.now_s < self.no_quorum_until_s
            or any(self.now_s < rank.stalled_until_s for rank in self.ranks())
        )

    def kill(self, rank: SimRank) -> None:
        if rank.alive:
            rank.alive, rank.died_s = False, self.now_s
