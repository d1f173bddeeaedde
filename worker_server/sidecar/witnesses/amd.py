"""What AMD's management library says of GPUs: `amdsmi`, an optional extra.

An answer of "not supported", "invalid" or "N/A" means that nothing is known, and never that all is
well: the state of XGMI fails so on MI300X and later, where the errors counted for its block are the
evidence (ROCm/rocm-systems#11468).
"""

from __future__ import annotations

from typing import Any, Final

from lightkeeper.worker_server.sidecar.witnesses import counting
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight

_UNCORRECTED: Final = (Weight.BROKEN, "gpu-ecc", "uncorrectable memory errors")
_DEFERRED: Final = (Weight.CONTEXT, "gpu-ecc-deferred", "deferred memory errors")
_XGMI: Final = (Weight.BROKEN, "gpu-xgmi", "uncorrectable errors of XGMI links")
_HEAT: Final = {
    "active_prochot_thrm": "the processor", "active_socket_thrm": "the socket",
    "active_vr_thrm": "the voltage regulator", "active_hbm_thrm": "its memory",
}  # fmt: skip
"""Its power cap (`active_ppt_pwr`) is normal."""


class Amd(counting.Gpus):
    """Asks every GPU for memory errors, XGMI links and throttling."""

    name = "AMD"

    def _read(self) -> None:
        self.open("amdsmi", "amdsmi_init")
        handles = self.ask("amdsmi_get_processor_handles") or ()
        if not sum([self._gpu(*row) for row in enumerate(handles)]):
            raise CannotReadError(self.why)

    def _gpu(self, gpu: int, handle: Any) -> bool:
        """Whether it answered anything."""
        users = self.ask("amdsmi_get_gpu_process_list", handle) or ()
        self.used_by(gpu, [int(user["pid"]) for user in users])
        errors = self.ask("amdsmi_get_gpu_total_ecc_count", handle) or {}
        self.rising(gpu, "ecc", errors.get("uncorrectable_count"), _UNCORRECTED)
        self.rising(gpu, "deferred", errors.get("deferred_count"), _DEFERRED)
        block = self.library.AmdSmiGpuBlock.XGMI_WAFL
        xgmi = self.ask("amdsmi_get_gpu_ecc_count", handle, block) or {}
        self.rising(gpu, "xgmi", xgmi.get("uncorrectable_count"), _XGMI)
        links = self.ask("amdsmi_get_gpu_xgmi_link_status", handle) or {}
        for link, state in enumerate(links.get("status", ())):
            if state in ("U", "D") and self.rose((gpu, "link", link), int(state == "D")):
                self.bad(gpu, Weight.SLOW, "xgmi-down", f"XGMI link {link} went down")
        throttled = self.ask("amdsmi_get_violation_status", handle) or {}
        for field, what in _HEAT.items():
            if throttled.get(field) is True:
                text = f"its clocks are cut, {what} is too hot"
                self.bad(gpu, Weight.SLOW, "gpu-thermal", text)
        return bool(errors or links or throttled)
