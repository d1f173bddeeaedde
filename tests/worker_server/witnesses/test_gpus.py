"""The witnesses of GPUs, against stubs with the functions of nvidia-ml-py 13 and amdsmi 7."""

# ruff: noqa: N802, N803  the names are those of the libraries

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.witnesses.gpus import Amd, Nvidia
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

BROKEN, SLOW, CONTEXT = Weight.BROKEN, Weight.SLOW, Weight.CONTEXT
TIMEOUT, LOST, RESET, UNSUPPORTED = 10, 15, 16, 3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost"}.get(
            self.value, "?"
        )


class StubNvml(ModuleType):
    """Two healthy H100s; `facts` holds what a test changes, an int that is raised if negative."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.xids: list[tuple[int, int]] = []
        self.facts: dict[tuple[str, int], Any] = {}

    def of(self, what: str, gpu: int, usual: Any) -> Any:
        value = self.facts.get((what, gpu), self.facts.get((what, -1), usual))
        if isinstance(value, int) and value < 0:
            raise NVMLError(-value)
        return value

    def nvmlInit(self) -> None:
        self.of("init", 0, 0)

    def nvmlDeviceGetCount(self) -> int:
        return int(self.of("count", 0, 2))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return int(self.of("handle", index, index + 100))

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle - 100

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: int) -> list[Any]:
        pids = self.of("pids", handle - 100, [70 + handle - 100])
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in pids]

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.of("clients", handle - 100, [])]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, errorType: int, counterType: int) -> int:
        assert (errorType, counterType) == (1, 0)
        return int(self.of("ecc", handle - 100, 3))

    def nvmlDeviceGetRemappedRows(self, device: int) -> tuple[int, int, int, int]:
        return self.of("rows", device - 100, (4, 2, 0, 0))  # type: ignore[no-any-return]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return int(self.of("reasons", handle - 100, 1 | 4))

    def nvmlDeviceGetNvLinkState(self, device: int, link: int) -> int:
        return int(self.of("links", device - 100, [1, 1])[link]) if link < 2 else self.of("", 0, -2)

    def nvmlDeviceGetFieldValues(self, handle: int, fieldIds: list[tuple[int, int]]) -> list[Any]:
        fields = self.of("fields", handle - 100, {})
        unknown = self.of("unsupported", handle - 100, (208, 215))
        return [
            SimpleNamespace(
                fieldId=field, scopeId=scope, valueType=3 if field < 200 else 1,
                nvmlReturn=UNSUPPORTED if field in unknown else 0,
                value=SimpleNamespace(ullVal=fields.get((field, scope), 0),
                                      uiVal=fields.get((field, scope), 0)),
            )
            for field, scope in fieldIds
        ]  # fmt: skip

    def nvmlEventSetCreate(self) -> object:
        return self.of("events", 0, object())

    def nvmlDeviceRegisterEvents(self, handle: int, eventTypes: int, eventSet: object) -> None:
        assert eventTypes == 8

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> Any:
        assert timeoutms == 0
        if not self.xids:
            raise NVMLError(TIMEOUT)
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=gpu + 100, eventType=8, eventData=xid)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StubNvml:
    stub = StubNvml()
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    return stub


Change = Callable[[Any], object]


def fact(what: str, value: Any, gpu: int = 0) -> Change:
    return lambda stub: stub.facts.update({(what, gpu): value})


def xid(number: int, gpu: int = 0) -> Change:
    return lambda stub: stub.xids.append((gpu, number))


def looks(
    witness: MachineWitness, stub: Any, changes: list[Change | None], every_s: float = 5.0
) -> list[wire.Testimony]:
    """What is said at the last look; a change comes before each look but the first."""
    rows = witness.look((70, 71), 1000.0)
    assert list(rows) == []
    for number, change in enumerate(changes, start=1):
        if change is not None:
            change(stub)
        rows = witness.look((70, 71), 1000.0 + number * every_s)
    return list(rows)


NVIDIA: dict[str, tuple[list[Change | None], list[tuple[Weight, str, str]]]] = {
    "healthy": ([None, None], []),
    "ECC": ([fact("ecc", 5)], [(BROKEN, "gpu-ecc", "GPU 0: uncorrectable memory errors (2)")]),
    "ECC set back": ([fact("ecc", 0)], []),
    "ECC is off": ([fact("ecc", -UNSUPPORTED)], []),
    "remap failed": ([fact("rows", (4, 2, 0, 1))], [(BROKEN, "gpu-remap", "could not be")]),
    "remap pending": ([fact("rows", (4, 2, 1, 0))], [(CONTEXT, "gpu-remap", "waits for a reset")]),
    "remapped rows": ([fact("rows", (400, 20, 0, 0))], []),
    "hardware slowdown": ([fact("reasons", 8)], [(SLOW, "gpu-slowdown", "cut by the hardware")]),
    "hardware heat": ([fact("reasons", 0x44)], [(SLOW, "gpu-thermal", "too hot")]),
    "power brake": ([fact("reasons", 0x80)], [(SLOW, "gpu-power", "the power supply")]),
    "driver's heat": ([fact("reasons", 0x20), None, None],
                      [(SLOW, "gpu-thermal", "by the driver")]),
    "driver's heat for 5 s": ([fact("reasons", 0x20), None], []),
    "power cap": ([fact("reasons", 0x17)], []),
    "recovery": ([fact("fields", {(230, 0): 2})],
                 [(BROKEN, "gpu-recovery", "the driver asks for a reboot")]),
    "an NVLink fell": ([fact("links", [1, 0])], [(SLOW, "nvlink-down", "NVLink 1 went down")]),
    "an NVLink recovered": ([fact("fields", {(162, 1): 2})], [(SLOW, "nvlink-recovery", "(2)")]),
    "NVLink replays": ([fact("fields", {(161, 0): 9})], [(CONTEXT, "nvlink-replay", "(9)")]),
    "lost": ([fact("ecc", -LOST)], [(BROKEN, "gpu-lost", "GPU 0: fallen off the bus")]),
    "wants a reset": ([fact("reasons", -RESET, 1)],
                      [(BROKEN, "gpu-reset", "GPU 1: it needs a reset")]),
    "one of two counts": ([fact("count", 1)], []),
    "a lost one is not counted": (
        [lambda stub: stub.facts.update({("count", 0): 1, ("ecc", 1): -LOST})],
        [(BROKEN, "gpu-lost", "GPU 1: fallen off the bus")]),
    "a counter comes late": ([fact("unsupported", ()), fact("fields", {(215, 0): 3})],
                             [(SLOW, "nvlink-recovery", "came back (3)")]),
    "a counter comes late, and is old": (
        [lambda stub: stub.facts.update({("unsupported", 0): (), ("fields", 0): {(215, 0): 3}})],
        []),
    "Xid 79": ([xid(79, 1)], [(BROKEN, "xid-79", "GPU 1: Xid 79")]),
    "Xid 31": ([xid(31)], [(CONTEXT, "xid-31", "GPU 0: Xid 31")]),
    "no permission for one thing": ([fact("ecc", -4)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", NVIDIA)
def test_nvidia_says(name: str, nvml: StubNvml) -> None:
    changes, said = NVIDIA[name]
    rows = looks(Nvidia(), nvml, changes)
    assert [(row.weight, row.code) for row in rows] == [each[:2] for each in said]
    for row, (_, _, text) in zip(rows, said, strict=True):
        assert text in row.text
        gpu = int(row.device.removeprefix("GPU "))
        assert row.pids == (70 + gpu,)


def test_a_lost_gpu_keeps_the_processes_that_used_it(nvml: StubNvml) -> None:
    def lose(stub: StubNvml) -> None:
        stub.facts.update({(what, 0): -LOST for what in ("pids", "ecc", "reasons")})

    (row,) = looks(Nvidia(), nvml, [lose, None])
    assert (row.weight, row.code, row.pids) == (BROKEN, "gpu-lost", (70,))


def test_when_all_gpus_are_lost_that_is_said(nvml: StubNvml) -> None:
    lost = {(what, -1): -LOST for what in ("pids", "ecc", "reasons")}
    rows = looks(Nvidia(), nvml, [lambda stub: stub.facts.update(lost)])
    assert [(row.code, row.device) for row in rows] == [
        ("gpu-lost", "GPU 0"),
        ("gpu-lost", "GPU 1"),
    ]


def test_a_link_that_was_not_known_did_not_go_down(amd: StubAmd) -> None:
    amd.facts[("links", 0)] = ["N/A"]
    assert looks(Amd(), amd, [fact("links", ["D"])]) == []


def test_events_and_counters_are_counted_and_a_state_is_one(nvml: StubNvml) -> None:
    changes = [xid(31), xid(31), fact("ecc", 8), fact("reasons", 8), None]
    counts = {row.code: (row.count, row.for_s) for row in looks(Nvidia(), nvml, changes)}
    assert counts == {"xid-31": (2, 20.0), "gpu-ecc": (5, 10.0), "gpu-slowdown": (1, 5.0)}


def test_a_gpu_of_others_is_context(nvml: StubNvml) -> None:
    nvml.facts[("pids", 1)] = [9999]
    (row,) = looks(Nvidia(), nvml, [xid(79, 1)])
    assert (row.weight, row.pids) == (CONTEXT, (9999,))


def test_a_rank_behind_mps_uses_the_gpu(nvml: StubNvml) -> None:
    nvml.facts |= {("pids", 1): [9999], ("clients", 1): [71]}
    (row,) = looks(Nvidia(), nvml, [xid(79, 1)])
    assert (row.weight, row.pids) == (BROKEN, (71,))


def test_a_gpu_whose_processes_are_hidden_concerns_the_host(nvml: StubNvml) -> None:
    nvml.facts[("pids", -1)] = []
    (row,) = looks(Nvidia(), nvml, [xid(79, 1)])
    assert (row.weight, row.pids) == (BROKEN, ())


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({("init", 0): -12}, r"pynvml: \?"),
        ({("count", 0): -9}, "GetCount"),
        ({("count", 0): 0}, "there is no GPU"),
        ({("handle", -1): -4}, "Insufficient Permissions"),
        ({("ecc", -1): -UNSUPPORTED, ("reasons", -1): -UNSUPPORTED}, "nvml"),
    ],
    ids=["no library", "no driver", "no GPU", "forbidden", "nothing supported"],
)
def test_nvidia_cannot_be_read(facts: dict[tuple[str, int], int], why: str, nvml: StubNvml) -> None:
    nvml.facts.update(facts)
    with pytest.raises(CannotReadError, match=why):
        Nvidia().look((70,), 1.0)


def test_an_old_library_lacks_a_function(nvml: StubNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StubNvml, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.delattr(StubNvml, "nvmlDeviceGetFieldValues")
    (row,) = looks(Nvidia(), nvml, [fact("ecc", 4)])
    assert row.code == "gpu-ecc"


def test_without_events_all_else_is_read(nvml: StubNvml) -> None:
    nvml.facts[("events", 0)] = -4
    (row,) = looks(Nvidia(), nvml, [fact("ecc", 4)])
    assert row.code == "gpu-ecc"


@pytest.mark.parametrize(("witness", "name"), [(Nvidia, "pynvml"), (Amd, "amdsmi")])
def test_without_the_extra(
    witness: type[MachineWitness], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CannotReadError, match=f"{name}: import of|No module named"):
        witness().look((), 1.0)


class StubAmd(ModuleType):
    """One healthy MI300X of two, whose XGMI state cannot be read, as is usual there."""

    AmdSmiGpuBlock = SimpleNamespace(XGMI_WAFL=256)

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.facts: dict[tuple[str, int], Any] = {}

    def of(self, what: str, gpu: str, usual: Any) -> Any:
        value = self.facts.get((what, int(gpu)), self.facts.get((what, -1), usual))
        if isinstance(value, Exception):
            raise value
        return value

    def amdsmi_init(self) -> None:
        self.of("init", "0", None)

    def amdsmi_get_processor_handles(self) -> list[str]:
        return list(self.of("handles", "0", ["0", "1"]))

    def amdsmi_get_gpu_process_list(self, processor_handle: str) -> list[dict[str, Any]]:
        return [{"name": "N/A", "pid": 70 + int(processor_handle), "mem": 1}]

    def amdsmi_get_gpu_total_ecc_count(self, processor_handle: str) -> dict[str, Any]:
        usual = {"correctable_count": 9, "uncorrectable_count": 1, "deferred_count": 0}
        return dict(usual | self.of("ecc", processor_handle, {}))

    def amdsmi_get_gpu_ecc_count(self, processor_handle: str, block: int) -> dict[str, Any]:
        assert block == 256
        usual = {"correctable_count": 0, "uncorrectable_count": 0, "deferred_count": 0}
        return dict(usual | self.of("xgmi", processor_handle, {}))

    def amdsmi_get_gpu_xgmi_link_status(self, processor_handle: str) -> dict[str, Any]:
        status = self.of("links", processor_handle, ["U", "X", "N/A"])
        return {"status": status, "total_links": len(status)}

    def amdsmi_get_violation_status(self, processor_handle: str) -> dict[str, Any]:
        usual = {"active_socket_thrm": False, "active_hbm_thrm": "N/A", "active_ppt_pwr": True}
        return dict(usual | self.of("violations", processor_handle, {}))


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> StubAmd:
    stub = StubAmd()
    monkeypatch.setitem(sys.modules, "amdsmi", stub)
    return stub


INVAL = OSError("Error code: 1 | AMDSMI_STATUS_INVAL - Invalid parameters")
AMD: dict[str, tuple[list[Change | None], list[tuple[Weight, str, str]]]] = {
    "healthy": ([None, None], []),
    "ECC": ([fact("ecc", {"uncorrectable_count": 3})],
            [(BROKEN, "gpu-ecc", "GPU 0: uncorrectable memory errors (2)")]),
    "deferred": ([fact("ecc", {"deferred_count": 3})], [(CONTEXT, "gpu-ecc-deferred", "(3)")]),
    "corrected": ([fact("ecc", {"correctable_count": 300})], []),
    "in a guest": ([fact("ecc", INVAL)], []),
    "not available": ([fact("ecc", {"uncorrectable_count": "N/A"})], []),
    "XGMI": ([fact("xgmi", {"uncorrectable_count": 1}, 1)],
             [(BROKEN, "gpu-xgmi", "GPU 1: uncorrectable errors of XGMI links (1)")]),
    "XGMI cannot be read": ([fact("links", INVAL), fact("xgmi", INVAL)], []),
    "a link fell": ([fact("links", ["D", "X", "N/A"])],
                    [(SLOW, "xgmi-down", "XGMI link 0 went down")]),
    "a link that is not known any more": ([fact("links", ["N/A", "X", "N/A"])], []),
    "socket too hot": ([fact("violations", {"active_socket_thrm": True})],
                       [(SLOW, "gpu-thermal", "the socket is too hot")]),
}  # fmt: skip


@pytest.mark.parametrize("name", AMD)
def test_amd_says(name: str, amd: StubAmd) -> None:
    changes, said = AMD[name]
    rows = looks(Amd(), amd, changes)
    assert [(row.weight, row.code) for row in rows] == [each[:2] for each in said]
    for row, (_, _, text) in zip(rows, said, strict=True):
        assert text in row.text
        assert row.pids == (70 + int(row.device.removeprefix("GPU ")),)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({("init", 0): KeyError("libamd_smi.so")}, "libamd_smi.so"),
        ({("handles", 0): []}, "there is no GPU"),
        ({(what, -1): INVAL for what in ("ecc", "xgmi", "links", "violations")}, "STATUS_INVAL"),
    ],
    ids=["no library", "no GPU", "nothing can be read"],
)
def test_amd_cannot_be_read(facts: dict[tuple[str, int], Any], why: str, amd: StubAmd) -> None:
    amd.facts.update(facts)
    with pytest.raises(CannotReadError, match=why):
        Amd().look((70,), 1.0)
