"""What torchtitan 0.3.0 takes for granted, and a machine without a GPU does not have.

torchtitan asks torch for an accelerator, and takes CUDA where there is none. So torch has to name
the CPU as one, with the device functions that torch.cpu lacks; nothing of torchtitan is changed.
"""

from __future__ import annotations

import os
import resource
import types

import torch
import torch.cpu
from torch.distributed.fsdp import FSDPModule


def patch() -> None:
    """Before torchtitan is imported."""
    device = _cpu_as_accelerator()
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: device
    _sum_without_factor()


def _cpu_as_accelerator() -> types.ModuleType:
    """torch.cpu, with what torchtitan calls besides to report memory and the device's name."""
    device = types.ModuleType("cpu_as_accelerator")
    device.__dict__.update(vars(torch.cpu))
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    properties = types.SimpleNamespace(name="cpu", total_memory=memory_bytes)
    device.__dict__.update(
        set_device=lambda _: None,
        current_device=lambda: 0,
        get_device_name=lambda _=None: "cpu",
        get_device_properties=lambda _=None: properties,
        memory_stats=lambda _=None: _peak_memory(),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
    )
    return device


def _peak_memory() -> dict[str, int]:
    """Under the keys that torchtitan reads: the most that this process ever had resident."""
    nbytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": nbytes, "reserved_bytes.all.peak": nbytes}


def _sum_without_factor() -> None:
    """Where torchtitan sets FSDP's factor to 1 (it divides by the tokens itself), FSDP asks for a
    sum that multiplies first, which gloo does not have: ask for a plain sum, which is the same.
    """
    original = FSDPModule.set_gradient_divide_factor

    def set_gradient_divide_factor(self: FSDPModule, factor: float) -> None:
        original(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_gradient_divide_factor
