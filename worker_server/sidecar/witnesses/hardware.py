"""What the hardware counts and the kernel shows in files: memory, heat, PCIe and network links."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightkeeper.worker_server.sidecar.files import number_in, numbers_in, text_in
from lightkeeper.worker_server.sidecar.network import interfaces
from lightkeeper.worker_server.sidecar.witnesses import TABLES
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

_GPU_OR_NIC: Final = ("0x03", "0x02", "0x12")
"""Display, network and accelerator classes of PCI."""
_DOWN_S: Final = 5.0
"""A container's interface is down for a moment before it is gone."""
_ERRORS: Final = 10.0
"""A second, as NVSentinel's monitor of NICs takes it for InfiniBand."""


class Counters(MachineWitness):
    """Reads the counters of one table, and says which rose since the first look."""

    every_s = 20.0  # a host has hundreds of devices and CPUs

    def __init__(self, name: str, root: Path = Path("/")) -> None:
        super().__init__(root)
        self.name = name

    def _read(self) -> None:
        rows = TABLES["counters"][self.name]
        links = self._links() if self.name == "PCIe" else 0
        if not sum([self._counted(row) for row in rows]) + links:
            raise CannotReadError(f"there is no /{rows[0][0]}")

    def _counted(self, row: list[Any]) -> int:
        """How many of a row's counters could be read."""
        pattern, weight, code, text, up, field, once = row
        seen, was_read = set[str](), 0
        for file in sorted(self.root.glob(pattern)):
            value = numbers_in(file).get(field) if field else number_in(file)
            was_read += value is not None
            same = str(text_in(file.parent / once)) if once else str(file)
            if (times := self.rose(file, value)) and same not in seen:
                seen.add(same)
                device = file.parents[up].name if up >= 0 else ""
                shown = f"{device}: {text} ({times})".removeprefix(": ")
                self.saw(Weight(weight), code, shown, device=device, times=times)
        return was_read

    def _links(self) -> int:
        """How many GPUs and NICs there are. Bad are links that are narrower than they were or than
        those of their like; a slot may be narrower than its card: that alone is nothing.
        """
        links: dict[str, list[tuple[str, int, int]]] = {}
        for folder in self.root.glob("sys/bus/pci/devices/*"):
            now, most = (number_in(folder / f"{when}_link_width") for when in ("current", "max"))
            if now and most and (text_in(folder / "class") or "").startswith(_GPU_OR_NIC):
                kind = f"{text_in(folder / 'vendor')} {text_in(folder / 'device')}"
                links.setdefault(kind, []).append((folder.name, now, most))
        for alike in links.values():
            widest = max(now for _, now, _ in alike)
            for name, now, most in alike:
                usual = min(most, max(widest, self._values.setdefault((name, "width"), now)))
                if now < usual:
                    text = f"{name}: PCIe x{now}, where x{usual} is usual"
                    self.saw(Weight.SLOW, "pcie-width", text, device=name)
        return len(links)


class NetworkWitness(MachineWitness):
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
