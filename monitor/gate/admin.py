"""The gate's admin port: what it sees, whom it refuses. Denying takes the token."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from monitor.gate import metrics
from monitor.gate.arrival import Arrivals
from monitor.gate.denial import DenialError, denials_json, parse_denials
from monitor.gate.gate import GateCore
from monitor.gate.memory import Memory

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
_HERE: Final = """\
lightkeeper gate

GET /v1/gate         what it sees: replica ids, heartbeats, steps; whom it refuses
PUT /v1/gate/denied  replace the list of denials (needs the token)
GET /metrics         the same for Prometheus
GET /healthz
"""


@dataclass
class Desk:
    """What the admin port serves."""

    core: GateCore
    arrivals: Arrivals
    memory: Memory
    token: str | None

    def application(self) -> web.Application:
        """Its routes."""
        made = web.Application(client_max_size=BODY_MAX_BYTES)
        made.add_routes(
            [
                web.get("/", self._here),
                web.get("/v1/gate", self._view),
                web.put("/v1/gate/denied", self._deny),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
            ]
        )
        return made

    async def _here(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=_HERE)

    async def _view(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(self.core.view().to_json())

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(
            body=generate_latest(metrics.registry(self)),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def _health(self, request: web.Request) -> web.Response:
        del request
        up = {True: "up", False: "away", None: "not looked at yet"}[self.core.lighthouse.up]
        lines = [f"ok: the Lighthouse is {up}"]
        if self.memory.trouble is not None:
            lines.append(self.memory.trouble)
        if self.arrivals.keeping is not None and not self.arrivals.keeping.kept:
            lines.append("the keeper is gone: start `lightkeeper gate` again on the same address")
        return web.Response(text="\n".join(lines) + "\n")

    async def _deny(self, request: web.Request) -> web.Response:
        if self.token is None:
            return _error(403, "this gate has no token and denies nobody: start it with one")
        said = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(said, f"Bearer {self.token}".encode()):
            return _error(401, "the bearer token is missing or another")
        try:
            denials = parse_denials(json.loads(await request.read()))
        except (DenialError, ValueError, RecursionError) as exc:
            return _error(400, str(exc))
        before = self.core.doorman.denials
        self.core.deny(denials)
        if self.core.doorman.denials != before or self.memory.trouble is not None:
            if self.arrivals.keeping is not None:
                self.arrivals.keeping.denied(self.core)
            await self.memory.keep(self.core.doorman.denials)
        return web.json_response(denials_json(self.core.doorman.denials))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
