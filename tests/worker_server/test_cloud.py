"""The witness of clouds, against fakes of their metadata services."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from lightkeeper.worker_server.sidecar.witnesses.cloud import CloudNotices
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight
from tests.http_server import FakeServer, Hang
from tests.ports import free_port

AWS, GCP = "/latest/meta-data", "/computeMetadata/v1/instance"
AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
MINE = {
    "aws": ({"/latest/api/token": "t0k3n"}, ("X-aws-ec2-metadata-token", "t0k3n")),
    "gcp": ({f"{GCP}/preempted": "FALSE", f"{GCP}/maintenance-event": "NONE"},
            ("Metadata-Flavor", "Google")),
    "azure": ({AZURE: '{"Events": []}', NAME: "vm_3"}, ("Metadata", "true")),
}  # fmt: skip


class Metadata(FakeServer):
    """One cloud's service; what it has not is a 404, and what has not its header a 403."""

    def __init__(self, cloud: str) -> None:
        super().__init__()
        pages, self.header = MINE[cloud]
        self.pages: dict[str, str] = dict(pages)
        self.asked: list[str] = []
        self.hanging = False
        self.status = 200

    def serve(self, handler, method, path, body):
        self.asked.append(path)
        if self.hanging:
            raise Hang
        name, value = self.header
        if path == "/latest/api/token":
            assert method == "PUT"
        elif handler.headers.get(name) != value:
            return handler.reply(403, "text/plain", b"")
        status = self.status if path in self.pages else 404
        return handler.reply(
            status, "text/plain", self.pages.get(path, "").encode(), Location="http://127.0.0.1:1/"
        )


@pytest.fixture(params=MINE)
def cloud(request):
    with closing(Metadata(request.param)) as server:
        server.name = request.param
        yield server


def witness(server: Metadata) -> CloudNotices:
    return CloudNotices(server.address, server.address, server.address)


def soon(seconds: float = 120.0) -> datetime:
    return datetime.fromtimestamp(int(time.time() + seconds), UTC)


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rows(said):
    return [(each.weight, each.code, each.text) for each in said]


def test_it_is_a_witness_and_has_nothing_to_say_of_a_machine_that_stays(cloud):
    looker: MachineWitness = witness(cloud)
    assert looker.look((), 100.0) == []
    assert looker.look((), 105.0) == []


def test_a_preemption_is_said_with_its_time(cloud):
    at = soon()
    cloud.pages |= {
        "aws": {f"{AWS}/spot/instance-action": json.dumps({"action": "stop", "time": iso(at)})},
        "gcp": {f"{GCP}/preempted": "TRUE"},
        "azure": {AZURE: json.dumps({"Events": [
            {"EventType": "Preempt", "Resources": ["vm_3"], "NotBefore": format_datetime(at)},
            {"EventType": "Reboot", "Resources": ["vm_4"], "NotBefore": ""},
        ]})},
    }[cloud.name]  # fmt: skip
    words = {
        "aws": f"preemption at {at:%H:%M:%S} UTC",
        "gcp": "preemption",
        "azure": f"preemption (Preempt) at {at:%H:%M:%S} UTC",
    }
    assert rows(witness(cloud).look((), 1.0)) == [(Weight.LEAVING, "preemption", words[cloud.name])]


def test_maintenance_is_said_and_one_of_next_week_is_context(cloud):
    at, later = soon(), soon(7 * 86_400.0)
    event = {"Code": "system-reboot", "State": "active"}
    cloud.pages |= {
        "aws": {
            f"{AWS}/autoscaling/target-lifecycle-state": "Terminated",
            f"{AWS}/events/maintenance/scheduled": json.dumps([
                {**event, "NotBefore": f"{later:%d %b %Y %H:%M:%S} GMT"},
                {**event, "State": "completed", "NotBefore": ""},
            ]),
        },
        "gcp": {f"{GCP}/maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"},
        "azure": {AZURE: json.dumps({"Events": [
            {"EventType": "Freeze", "Resources": ["vm_3"], "NotBefore": format_datetime(at)},
        ]})},
    }[cloud.name]  # fmt: skip
    assert rows(witness(cloud).look((), 1.0)) == {
        "aws": [
            (Weight.LEAVING, "scale-down", "the autoscaling group ends the machine"),
            (Weight.CONTEXT, "maintenance",
             f"maintenance (system-reboot) on {later:%F} at {later:%H:%M:%S} UTC"),
        ],
        "gcp": [(Weight.LEAVING, "maintenance", "maintenance (TERMINATE_ON_HOST_MAINTENANCE)")],
        "azure": [(Weight.LEAVING, "maintenance",
                   f"maintenance (Freeze) at {at:%H:%M:%S} UTC")],
    }[cloud.name]  # fmt: skip


def test_where_nobody_answers_it_asks_every_ten_minutes():
    nobody = f"127.0.0.1:{free_port()}"
    looker = CloudNotices(nobody, nobody, nobody)
    with pytest.raises(CannotReadError, match="no metadata service"):
        looker.look((), 100.0)
    with closing(Metadata("gcp")) as server:
        looker._clouds = witness(server)._clouds
        with pytest.raises(CannotReadError, match="no metadata service"):
            looker.look((), 699.0)
        assert server.asked == []
        assert looker.look((), 701.0) == []


def test_a_service_that_hangs_costs_a_second_and_is_asked_again():
    with closing(Metadata("aws")) as server:
        looker = witness(server)
        server.hanging = True
        began = time.monotonic()
        with pytest.raises(CannotReadError, match="no metadata service"):
            looker.look((), 0.0)
        assert time.monotonic() - began < 4.0
        server.hanging = False
        assert looker.look((), 1000.0) == []
        server.hanging = True
        with pytest.raises(CannotReadError, match="the metadata service does not answer"):
            looker.look((), 1005.0)
        server.hanging = False
        assert looker.look((), 1010.0) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 60_000, '{"time": 7}', '{"action": "stop"}', '{"time": "yesterday"}', "\xff",
     '{"time": "9999999-01-01T00:00:00Z"}'],
    ids=range(8),
)  # fmt: skip
def test_what_makes_no_sense_is_no_preemption(text):
    with closing(Metadata("aws")) as server:
        looker = witness(server)
        looker.look((), 0.0)
        server.pages[f"{AWS}/spot/instance-action"] = text
        if text:
            with pytest.raises(CannotReadError):
                looker.look((), 5.0)
        else:
            assert looker.look((), 5.0) == []


def test_a_redirect_is_not_followed_and_a_flood_is_cut():
    with closing(Metadata("azure")) as server:
        looker = witness(server)
        looker.look((), 0.0)
        event = {"EventType": "Reboot\x1b[31m" + "x" * 500, "NotBefore": ""}
        events = [{**event, "EventType": f"{n}{event['EventType']}"} for n in range(100)]
        server.pages[AZURE] = json.dumps({"Events": events})
        said = looker.look((), 5.0)
        assert len(said) == 8
        assert all(len(each.text) <= 200 and each.text.isprintable() for each in said)
        server.status = 302
        with pytest.raises(CannotReadError, match="the metadata service does not answer"):
            looker.look((), 10.0)
