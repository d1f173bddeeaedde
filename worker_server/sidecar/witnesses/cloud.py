"""What the cloud announces to its machine: that it is taken back, maintained or restarted.

The notices of AWS, GCP and Azure are at a link-local address that needs no credentials. It may be
closed to containers; on a machine of one's own nobody answers there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection
from itertools import islice
from typing import Final

from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

_ADDRESS: Final = "169.254.169.254:80"
_ASK_S: Final = 0.3
_AGAIN_S: Final = 600.0
_SOON_S: Final = 3600.0
"""Maintenance that begins later does not explain what happens now."""
_MOST_BYTES: Final = 65_536
_EVENTS_MOST: Final = 8
_Ask = Callable[..., str]
_Notice = tuple[str, str, str]
"""Code, what is to come, and when: a moment as the cloud writes it, or nothing."""


class CloudNotices(MachineWitness):
    """Asks the cloud of this machine, once it is known which."""

    name = "cloud"
    kept_s = 0.0, 0.0

    def __init__(self, aws: str = _ADDRESS, gcp: str = _ADDRESS, azure: str = _ADDRESS) -> None:
        """Where each cloud's metadata service is, as HOST:PORT."""
        super().__init__()
        self._clouds: list[tuple[str, Callable[[_Ask], Iterator[_Notice]]]] = [
            (aws, _aws), (gcp, _gcp), (azure, _azure)
        ]  # fmt: skip
        self._mine = False
        self._again_s = 0.0

    def _read(self) -> None:
        nobody = CannotReadError("no metadata service")
        if self.now_s < self._again_s:
            raise nobody
        for address, read in self._clouds:
            with suppress(Exception):  # whatever an odd answer raises
                notices = islice(read(partial(_ask, address)), _EVENTS_MOST)
                rows = [(code, what, *_when(moment)) for code, what, moment in notices]
                for code, what, when, weight in rows:
                    self.saw(weight, code, what + when, about=what + when)
                self._clouds, self._mine = [(address, read)], True
                return
        if self._mine:
            raise CannotReadError("the metadata service does not answer, or answers nonsense")
        self._again_s = self.now_s + _AGAIN_S
        raise nobody


def _ask(address: str, path: str, headers: dict[str, str], method: str = "GET") -> str:
    """The answer; empty for a 404, which means that there is no notice.

    Raises:
        OSError, HTTPException, ValueError: there is none, or none that can be used.
    """
    with closing(HTTPConnection(address, timeout=_ASK_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES).decode()
    if answer.status not in (200, 404):
        raise ValueError(f"it answers {answer.status}")
    return body.strip() if answer.status == 200 else ""


def _aws(ask: _Ask) -> Iterator[_Notice]:
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    if not token:
        raise ValueError("no AWS")
    root, header = "/latest/meta-data", {"X-aws-ec2-metadata-token": token}
    if text := ask(f"{root}/spot/instance-action", header):
        yield "preemption", "preemption", json.loads(text)["time"]
    if ask(f"{root}/autoscaling/target-lifecycle-state", header) == "Terminated":
        yield "scale-down", "the autoscaling group ends the machine", ""
    for event in json.loads(ask(f"{root}/events/maintenance/scheduled", header) or "[]"):
        if event["State"] == "active":
            yield "maintenance", f"maintenance ({event['Code']})", event["NotBefore"]


def _gcp(ask: _Ask) -> Iterator[_Notice]:
    root, header = "/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
    preempted = ask(f"{root}/preempted", header)
    if preempted not in ("TRUE", "FALSE"):
        raise ValueError("no GCP")
    if preempted == "TRUE":
        yield "preemption", "preemption", ""
    event = ask(f"{root}/maintenance-event", header)
    if event not in ("NONE", ""):
        yield "maintenance", f"maintenance ({event})", ""


def _azure(ask: _Ask) -> Iterator[_Notice]:
    header = {"Metadata": "true"}
    events = json.loads(ask("/metadata/scheduledevents?api-version=2020-07-01", header))["Events"]
    name = ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", header)
    for event in events:  # of all machines of the set
        if not name or name in event.get("Resources", [name]):
            code = "preemption" if event["EventType"] == "Preempt" else "maintenance"
            yield code, f"{code} ({event['EventType']})", event.get("NotBefore") or ""


def _when(moment: str) -> tuple[str, Weight]:
    if not moment:
        return "", Weight.LEAVING
    at = (datetime.fromisoformat if moment[4:5] == "-" else parsedate_to_datetime)(moment)
    when = f" at {at.astimezone(UTC):%H:%M:%S} UTC"
    if at.timestamp() - time.time() > _SOON_S:
        return f" on {at.astimezone(UTC):%F}{when}", Weight.CONTEXT
    return when, Weight.LEAVING
