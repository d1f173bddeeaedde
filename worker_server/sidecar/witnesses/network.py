"""What network interfaces and InfiniBand ports say: links that went, errors that rise."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightkeeper.worker_server.sidecar.network import interfaces
from lightkeeper.worker_server.sidecar.witnesses import counting
from lightkeeper.worker_server.wire import Weight

_DOWN_S: Final = 5.0
"""A container's interface is down for a moment before it is gone."""
_ERRORS: Final = 10.0
"""A second, as NVSentinel's monitor of NICs takes it for InfiniBand."""


class Network(counting.Counting):
    """Compares carriers and errors with the first look."""

    name = "network"

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._up: dict[str, int] = {}
        """Interface -> changes of its carrier when it was last up."""

    def _read(self) -> None:
        net = self.root / "sys/class/net"
        net.stat()  # `interfaces` does not say that it is not there
        for row in interfaces(net, self.root / "sys/class/infiniband"):
            name, port = row.name, "/" in row.name
            if times := self.rose(("errors", name), row.errors):
                weight = Weight.SLOW if times >= _ERRORS * self.span_s else Weight.CONTEXT
                text = f"{name}: {times} errors in the last {self.span_s:.0f} s"
                self.saw(weight, "link-errors", text, device=name, times=times)
            times = self.rose(("changes", name), row.changes)
            for_s = self.unchanged_s(name, not row.up)
            if row.up:
                self._up[name] = row.changes
                if times and (port or (net / name / "device").exists()):  # a real one
                    text = f"{name}: the link went and came back"
                    self.saw(Weight.SLOW, "link-flap", text, device=name, times=times)
            elif name in self._up and for_s >= _DOWN_S:
                weight = Weight.BROKEN if port and row.changes > self._up[name] else Weight.SLOW
                text = f"{name}: the link was up and is down"
                self.saw(weight, "link-down", text, device=name, for_s=for_s)
