"""A fleet that lives in memory and is asked over real HTTP: `SimFleet` behind `FakeFleet`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.act.evidence import Evidence
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.metric import new_page
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.worker_server.wire import FlightRecord, to_json
from tests.changed import replace
from tests.monitor.decided import decided
from tests.monitor.fakes import FakeFleet, FakeRank, page, wait_until
from tests.monitor.fleet import Drive, SimFleet

REAL = Path(__file__).parent / "cases" / "gil-held-real-fleet.zip"
"""A bundle of real ranks, of which one held the GIL."""


def mirror(sim: SimFleet, http: FakeFleet) -> None:
    """Every rank of `sim` answers over HTTP what it would say at this moment."""
    for rank in sim.ranks():
        server = http.ranks.get(rank.name)
        if server is None:
            server = http.add(rank.group, rank.index)
        server.identity = rank.identity
        state, record = to_json(sim._report(rank)), sim._record(rank.name)
        server.answer = lambda _, state=state: page(state)
        server.record = record if isinstance(record, FlightRecord) else None


def over_http(snapshot: Snapshot, http: FakeFleet) -> Snapshot:
    """The same snapshot with URLs at which somebody answers."""
    seen = [
        replace(observation, url=http.ranks[observation.rank].url)
        for observation in snapshot.observations
    ]
    return replace(snapshot, observations=tuple(seen))


class Bench:
    """Evidence over a fake fleet; what it wrote."""

    def __init__(self, folder: Path, fetcher: Fetcher, http: FakeFleet, **config: Any) -> None:
        self.http = http
        self.config = KeeperConfig(**config)
        self.metrics = new_page()
        self.bundles = BundleDir(folder, self.config)
        self.fetcher = fetcher
        self.open()

    def open(self) -> None:
        self.fetcher.tokens = Tokens("secret")
        self.evidence = Evidence(
            clock=Clock(),
            fetcher=self.fetcher,
            bundles=self.bundles,
            config=self.config,
            metrics=self.metrics,
        )

    def take(self, snapshot: Snapshot, *incidents: Incident) -> None:
        self.evidence.take(snapshot, incidents, incidents)

    def evict(self, evict: Eviction, incident: Incident | None = None) -> str:
        ticket = self.evidence.before_eviction(decided(evict, (), 0.0), incident)
        assert ticket is not None
        return ticket.wait()

    def counted(self, **labels: str) -> float:
        value = self.value("lightkeeper_evidence_captures_total", **labels)
        return 0.0 if value is None else value

    def counts(self, **labels: str) -> bool:
        """Whether it is counted, a moment after it is written."""
        return wait_until(lambda: self.counted(**labels) == 1, 10, f"{labels} is counted")

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.get_sample_value(name, labels)

    def bundle(self, incident_id: str, *moments: str) -> Bundle:
        """The bundle once it has these moments."""

        def there() -> Bundle | None:
            path = self.evidence.bundles.path(incident_id)
            if path is None:
                return None
            bundle = Bundle(path)
            return bundle if set(moments) <= set(bundle.moments) else None

        return wait_until(there, 10, f"the bundle of {incident_id} with {moments}")


class Bundle:
    """A bundle, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with zipfile.ZipFile(path) as opened:
            assert opened.testzip() is None
            self.files = {name: opened.read(name) for name in opened.namelist()}
        assert len(self.files) == len(set(self.files))
        self.manifest = json.loads(self.files["manifest.json"])
        self.moments = {moment["moment"]: moment for moment in self.manifest["moments"]}

    def part(self, rank: str, part: str, moment: str = "firing") -> dict:
        parts = self.moments[moment]["parts"]
        (row,) = (entry for entry in parts if (entry["rank"], entry["part"]) == (rank, part))
        return row

    def statuses(self, rank: str, moment: str = "firing") -> dict[str, str]:
        parts = self.moments[moment]["parts"]
        return {entry["part"]: entry["status"] for entry in parts if entry["rank"] == rank}


def until_firing(
    drive: Drive, ticks: int = 150, each: Callable[[], object] = lambda: None
) -> Incident:
    """Runs the fleet until an incident fires; `each`: after every tick before."""
    for _ in range(ticks):
        firing = [
            incident
            for incident in drive.step().incidents
            if incident.milestones.firing_s is not None
        ]
        if firing:
            return firing[0]
        each()
    raise AssertionError("nothing fired")


def snapshot_of(drive: Drive) -> tuple[Drive, Callable[[], Snapshot]]:
    """A drive that remembers its last snapshot."""
    last: list[Snapshot] = []
    inner = drive.alter

    def keep(snapshot: Snapshot) -> Snapshot:
        last[:] = [inner(snapshot)]
        return last[0]

    drive.alter = keep
    return drive, lambda: last[0]


def rank_of(http: FakeFleet, name: str) -> FakeRank:
    return http.ranks[RankName(name)]
