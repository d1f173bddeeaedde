"""What the vendors' libraries say of GPUs: `nvidia-ml-py` and `amdsmi`, optional extras.

What a GPU or a driver does not support, or calls invalid or "N/A", is not known, and never "no". A
lost GPU of NVIDIA's answers 15, one that needs a reset 16 (nvmlReturn_t): these are evidence; any
other error only means that it could not be asked. The state of AMD's XGMI fails so on MI300X and
later, where the errors counted for its block are the evidence (ROCm/rocm-systems#11468).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Hashable
from typing import Any, Final

from lightkeeper.worker_server.sidecar.witnesses import TABLES
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

_TABLE: Final = TABLES["gpus"]
_ACTION: Final = 230
_KINDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_LINKS_MOST: Final = 36
_EVENT_XID: Final = 8
_EVENTS_MOST: Final = 64


class _Gpus(MachineWitness):
    """Asks a vendor's library, which may not know, fail or hang."""

    every_s = 10.0
    module = init = ""
    library: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._why = "there is no GPU"
        self._codes = set[int]()
        """Codes of the library's errors."""
        self._users: dict[int, tuple[list[int], bool]] = {}
        """GPU -> its processes, and whether a rank is among them: a lost one cannot be asked."""

    def _read(self) -> None:
        if self.library is None:
            try:
                library = importlib.import_module(self.module)
                getattr(library, self.init)()
            except Exception as exc:  # without what it needs, amdsmi's import raises KeyError
                raise CannotReadError(f"{self.module}: {str(exc) or type(exc).__name__}") from exc
            self.library = library
        if not self._answers():
            raise CannotReadError(self._why)

    def _answers(self) -> int:
        """Ask all GPUs; how many answered anything."""
        raise NotImplementedError

    def _ask(self, call: str, *arguments: Any) -> Any:
        """The library's answer; None: not known."""
        try:
            return getattr(self.library, call)(*arguments)
        except Exception as exc:  # noqa: BLE001  its own errors, and whatever its parsing raises
            self._why = f"{call}: {str(exc) or type(exc).__name__}"[:200]
            self._codes.add(getattr(exc, "value", 0))
            return None

    def _used_by(self, gpu: int, pids: Collection[int]) -> None:
        """Remember who uses a GPU, unless nobody seems to."""
        if pids:
            own = [pid for pid in pids if pid in self.ranks]
            self._users[gpu] = own or list(pids), bool(own)

    def _bad(self, gpu: int, weight: Weight, code: str, text: str, **more: Any) -> None:
        """A GPU is bad; if only others use it, that is context."""
        pids, ours = self._users.get(gpu, ([], True))
        name, weight = f"GPU {gpu}", weight if ours else Weight.CONTEXT
        self.saw(weight, code, f"{name}: {text}", device=name, pids=pids, **more)

    def _rising(self, gpu: int, key: Hashable, value: Any, row: list[str]) -> None:
        """A counter of a GPU that is bad when it rises; what is no number is not known."""
        if times := self.rose((gpu, key), value if isinstance(value, int) else None):
            self._bad(gpu, Weight(row[0]), row[1], f"{row[2]} ({times})", times=times)


class Nvidia(_Gpus):
    """Errors, throttling and links; Xids as events, without root."""

    name = "NVIDIA"
    every_s = 5.0
    module, init = "pynvml", "nvmlInit"

    def __init__(self) -> None:
        super().__init__()
        self._events: Any = None
        self._handles: dict[int, Any] = {}

    def _answers(self) -> int:
        count = max(self._ask("nvmlDeviceGetCount") or 0, len(self._handles))
        answers = sum([self._gpu(gpu) for gpu in range(count)])
        for _ in range(_EVENTS_MOST if self._events is not None else 0):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            gpu, xid = self._ask("nvmlDeviceGetIndex", event.device), int(event.eventData)
            if event.eventType == _EVENT_XID and gpu is not None:
                weight = Weight.BROKEN if xid in _TABLE["broken_xids"] else Weight.CONTEXT
                self._bad(gpu, weight, f"xid-{xid}", f"Xid {xid}", times=1)
        return answers

    def _gpu(self, gpu: int) -> bool:
        """True if it answered anything."""
        self._codes.clear()
        handle = self._handles.get(gpu) or self._ask("nvmlDeviceGetHandleByIndex", gpu)
        if handle is not None and gpu not in self._handles:
            self._handles[gpu] = handle
            self._events = self._events or self._ask("nvmlEventSetCreate")
            self._ask("nvmlDeviceRegisterEvents", handle, _EVENT_XID, self._events)
        answered = handle is not None and self._asked(gpu, handle)
        for error, code, text in _TABLE["lost"]:
            if error in self._codes:
                self._bad(gpu, Weight.BROKEN, code, text)
                answered = True
        return answered

    def _asked(self, gpu: int, handle: Any) -> bool:
        users = [
            int(user.pid)
            for kind in ("", "MPS")  # under MPS the first names its server alone
            for user in self._ask(f"nvmlDeviceGet{kind}ComputeRunningProcesses_v3", handle) or ()
        ]
        self._used_by(gpu, users)
        errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
        self._rising(gpu, "ecc", errors, _TABLE["ecc"])
        _, _, pending, failed = self._ask("nvmlDeviceGetRemappedRows", handle) or (0, 0, 0, 0)
        if failed or pending:
            weight = Weight.BROKEN if failed else Weight.CONTEXT
            how = "could not be replaced" if failed else "waits for a reset"
            self._bad(gpu, weight, "gpu-remap", f"a bad row of memory {how}")
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        for bit, least_s, code, text in _TABLE["reasons"]:
            cut = bool((reasons or 0) & bit)
            if (for_s := self.unchanged_s((gpu, bit), cut)) >= least_s and cut:
                self._bad(gpu, Weight.SLOW, code, text, for_s=for_s)
        self._fields(gpu, handle)
        return errors is not None or reasons is not None

    def _fields(self, gpu: int, handle: Any) -> None:
        """What is read as numbered fields: the driver's verdict, and errors of each NVLink."""
        wanted = [(_ACTION, 0)]
        for link in range(_LINKS_MOST):
            if (up := self._ask("nvmlDeviceGetNvLinkState", handle, link)) is None:
                break
            wanted += [(int(field), link) for field in _TABLE["fields"]]
            if self.rose((gpu, "down", link), int(not up)):
                self._bad(gpu, Weight.SLOW, "nvlink-down", f"NVLink {link} went down")
        for row in self._ask("nvmlDeviceGetFieldValues", handle, wanted) or ():
            value = None if row.nvmlReturn else int(getattr(row.value, _KINDS[row.valueType]))
            if row.fieldId != _ACTION:
                rule = _TABLE["fields"][str(row.fieldId)]
                self._rising(gpu, (row.fieldId, row.scopeId), value, rule)
            elif value:
                what = dict(enumerate(_TABLE["actions"])).get(value, f"recovery ({value})")
                self._bad(gpu, Weight.BROKEN, "gpu-recovery", f"the driver asks for a {what}")


class Amd(_Gpus):
    """Memory errors, XGMI links and throttling."""

    name = "AMD"
    module, init = "amdsmi", "amdsmi_init"

    def _answers(self) -> int:
        handles = self._ask("amdsmi_get_processor_handles") or ()
        return sum([self._gpu(*row) for row in enumerate(handles)])

    def _gpu(self, gpu: int, handle: Any) -> bool:
        """True if it answered anything."""
        users = self._ask("amdsmi_get_gpu_process_list", handle) or ()
        self._used_by(gpu, [int(user["pid"]) for user in users])
        errors = self._ask("amdsmi_get_gpu_total_ecc_count", handle) or {}
        self._rising(gpu, "ecc", errors.get("uncorrectable_count"), _TABLE["ecc"])
        self._rising(gpu, "deferred", errors.get("deferred_count"), _TABLE["deferred"])
        block = self.library.AmdSmiGpuBlock.XGMI_WAFL
        xgmi = self._ask("amdsmi_get_gpu_ecc_count", handle, block) or {}
        self._rising(gpu, "xgmi", xgmi.get("uncorrectable_count"), _TABLE["xgmi"])
        links = self._ask("amdsmi_get_gpu_xgmi_link_status", handle) or {}
        for link, state in enumerate(links.get("status", ())):
            if state in ("U", "D") and self.rose((gpu, "link", link), int(state == "D")):
                self._bad(gpu, Weight.SLOW, "xgmi-down", f"XGMI link {link} went down")
        throttled = self._ask("amdsmi_get_violation_status", handle) or {}
        for field, what in _TABLE["heat"].items():
            if throttled.get(field) is True:
                text = f"its clocks are cut, {what} is too hot"
                self._bad(gpu, Weight.SLOW, "gpu-thermal", text)
        return bool(errors or links or throttled)
