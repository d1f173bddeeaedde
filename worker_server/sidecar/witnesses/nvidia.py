"""What NVIDIA's management library says of GPUs: `nvidia-ml-py`, an optional extra.

What a GPU or a driver does not support is not known, and never "no". A lost GPU answers 15, one
that needs a reset 16 (nvmlReturn_t): these are evidence; any other error only means that it could
not be asked.
"""

from __future__ import annotations

from typing import Any, Final

from lightkeeper.worker_server.sidecar.witnesses import counting
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight

_LOST: Final = {15: ("gpu-lost", "fallen off the bus"), 16: ("gpu-reset", "it needs a reset")}
_REASONS: Final = (
    (0x08, 0.0, "gpu-slowdown", "its clocks are cut by the hardware"),
    (0x40, 0.0, "gpu-thermal", "too hot, its clocks are cut by the hardware"),
    (0x80, 0.0, "gpu-power", "its clocks are cut, the power supply asks for it"),
    (0x20, 10.0, "gpu-thermal", "too hot, its clocks are cut by the driver"),
)
"""Bits of the clocks' event reasons, and for how many seconds they must be set. Idle, power cap and
clocks set by somebody (4, 1, 2) are normal."""
_ACTION: Final = 230
_ACTIONS: Final = {
    1: "reset", 2: "reboot", 3: "drain of its peers", 4: "drain and reset", 5: "IMEX restart",
    6: "bus reset", 7: "system reboot",
}  # fmt: skip
_FIELDS: Final = {
    161: (Weight.CONTEXT, "nvlink-replay", "an NVLink sent data again"),
    162: (Weight.SLOW, "nvlink-recovery", "an NVLink was lost and came back"),
    163: (Weight.CONTEXT, "nvlink-crc", "data was damaged on an NVLink"),
    208: (Weight.CONTEXT, "nvlink-receive", "errors on receipt from an NVLink"),
    215: (Weight.SLOW, "nvlink-recovery", "an NVLink was lost and came back"),
}
"""Counters of one link each."""
_KINDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_USERS: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)  # fmt: skip
"""Under MPS the first names its server alone."""
_LINKS_MOST: Final = 36
_ECC: Final = (Weight.BROKEN, "gpu-ecc", "uncorrectable memory errors")
_SPINS_S, _SPINS_POWER = 60.0, 0.3
"""Share of the power limit: an H100 that waits inside a collective takes less than 160 of its 700
W, at 100 % utilisation (sichek)."""
_XIDS_BROKEN: Final = frozenset({48, 62, 64, 79, 95, 119, 120})
_EVENT_XID: Final = 8
_EVENTS_MOST: Final = 64


class Nvidia(counting.Gpus):
    """Asks every GPU for errors, throttling and links; hears Xids as events, without root."""

    name = "NVIDIA"
    every_s = 5.0

    def __init__(self) -> None:
        super().__init__()
        self._events: Any = None
        self._handles: dict[int, Any] = {}

    def _read(self) -> None:
        self.open("pynvml", "nvmlInit")
        count = max(self.ask("nvmlDeviceGetCount") or 0, len(self._handles))
        if not sum([self._gpu(gpu) for gpu in range(count)]):
            raise CannotReadError(self.why)
        for _ in range(_EVENTS_MOST if self._events is not None else 0):
            event = self.ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            gpu = self.ask("nvmlDeviceGetIndex", event.device)
            if event.eventType == _EVENT_XID and gpu is not None:
                xid = int(event.eventData)
                weight = Weight.BROKEN if xid in _XIDS_BROKEN else Weight.CONTEXT
                self.bad(gpu, weight, f"xid-{xid}", f"Xid {xid}", times=1)

    def _gpu(self, gpu: int) -> bool:
        """Whether it answered anything."""
        self.codes.clear()
        handle = self._handles.get(gpu) or self.ask("nvmlDeviceGetHandleByIndex", gpu)
        if handle is not None and gpu not in self._handles:
            self._handles[gpu] = handle
            self._events = self._events or self.ask("nvmlEventSetCreate")
            self.ask("nvmlDeviceRegisterEvents", handle, _EVENT_XID, self._events)
        answered = handle is not None and self._asked(gpu, handle)
        lost = self.codes & _LOST.keys()
        for code in lost:
            self.bad(gpu, Weight.BROKEN, *_LOST[code])
        return answered or bool(lost)

    def _asked(self, gpu: int, handle: Any) -> bool:
        users = (user for call in _USERS for user in self.ask(call, handle) or ())
        self.used_by(gpu, [int(user.pid) for user in users])
        errors = self.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
        self.rising(gpu, "ecc", errors, _ECC)
        _, _, pending, failed = self.ask("nvmlDeviceGetRemappedRows", handle) or (0, 0, 0, 0)
        if failed:
            self.bad(gpu, Weight.BROKEN, "gpu-remap", "a bad row of memory could not be replaced")
        elif pending:
            self.bad(gpu, Weight.CONTEXT, "gpu-remap", "a bad row of memory waits for a reset")
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        for bit, least_s, code, text in _REASONS:
            for_s = self.unchanged_s((gpu, bit), bool((reasons or 0) & bit))
            if (reasons or 0) & bit and for_s >= least_s:
                self.bad(gpu, Weight.SLOW, code, text, for_s=for_s)
        self._loaded(gpu, handle)
        self._fields(gpu, handle)
        return errors is not None or reasons is not None

    def _loaded(self, gpu: int, handle: Any) -> None:
        load = self.ask("nvmlDeviceGetUtilizationRates", handle)
        power = self.ask("nvmlDeviceGetPowerUsage", handle) or 0
        limit = self.ask("nvmlDeviceGetEnforcedPowerLimit", handle) or 0
        busy = load.gpu if load is not None else 0
        spins = busy >= 95 and 0 < power < _SPINS_POWER * limit
        if (for_s := self.unchanged_s((gpu, "spins"), spins)) >= _SPINS_S:
            text = f"{busy} % busy at {power // 1000} of {limit // 1000} W, its kernels wait"
            self.bad(gpu, Weight.CONTEXT, "gpu-waits", text, for_s=for_s)
        for what, least in (("Width", 0), ("Generation", 50)):  # an idle link slows down
            now = self.ask(f"nvmlDeviceGetCurrPcieLink{what}", handle)
            most = self.ask(f"nvmlDeviceGetMaxPcieLink{what}", handle)
            if now and most and now < most and busy >= least:
                code, text = f"pcie-{what.lower()}", f"PCIe {what.lower()} {now} of {most}"
                self.bad(gpu, Weight.SLOW, code, text)

    def _fields(self, gpu: int, handle: Any) -> None:
        """What is read as numbered fields: the driver's verdict, and errors of each NVLink."""
        links = []
        for link in range(_LINKS_MOST):
            if (up := self.ask("nvmlDeviceGetNvLinkState", handle, link)) is None:
                break
            links.append(link)
            if self.rose((gpu, "down", link), int(not up)):
                self.bad(gpu, Weight.SLOW, "nvlink-down", f"NVLink {link} went down")
        wanted = [(_ACTION, 0), *((field, link) for field in _FIELDS for link in links)]
        for row in self.ask("nvmlDeviceGetFieldValues", handle, wanted) or ():
            value = 0 if row.nvmlReturn else int(getattr(row.value, _KINDS[row.valueType]))
            if row.fieldId == _ACTION and value:
                text = f"the driver asks for a {_ACTIONS.get(value, f'recovery ({value})')}"
                self.bad(gpu, Weight.BROKEN, "gpu-recovery", text)
            elif row.fieldId in _FIELDS and not row.nvmlReturn:
                self.rising(gpu, (row.fieldId, row.scopeId), value, _FIELDS[row.fieldId])
