"""A rank whose page is written here, and its /metrics."""

from __future__ import annotations

import time

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.sidecar.metrics import StepFollower, make_registry
from tests.worker_server.pages import identity

WHO = {"job_id": "job", "replica_group": "rg_1", "rank": "0"}


class Rank:
    """A page, its reporter, and its metrics in either format."""

    def __init__(self, path):
        self.page = PageWriter.create(path, identity(), 1)
        self.reporter = Reporter(self.page)
        self.reader = PageReader(path)
        self.follower = StepFollower(self.reader)
        self.died_ns = None
        self.registry = make_registry(self.state, lambda: "http://h:1", self.follower)

    def die(self):
        self.died_ns = time.monotonic_ns()

    def state(self):
        now_ns, died_ns = time.monotonic_ns(), self.died_ns
        if died_ns is None:
            process = wire.Process(True, "S")
        else:
            process = wire.Process(False, None, dead_age_s=(now_ns - died_ns) * 1e-9)
        return wire.StateReport(
            self.reader.identity, process, self.reader.step_state(now_ns),
            self.reader.heads(now_ns),
        )  # fmt: skip

    def families(self, how="prometheus"):
        if how == "openmetrics":
            text = openmetrics.generate_latest(self.registry).decode()
            assert text.endswith("# EOF\n")
            return {family.name: family for family in parse_openmetrics(text)}
        return {f.name: f for f in parse_prometheus(generate_latest(self.registry).decode())}

    def value(self, name, **labels):
        for family in self.families().values():
            for sample in family.samples:
                if sample.name == name and sample.labels == {**WHO, **labels}:
                    return sample.value
        return None


def step(rank, n, *, committed=True):
    rank.reporter.begin_step(n)
    with rank.reporter.phase("forward"):
        pass
    with rank.reporter.phase("communication"):
        pass
    rank.reporter.end_step(n, committed=committed, loss=2.5, tokens=8)
