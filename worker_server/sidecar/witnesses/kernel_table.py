"""What lines of the kernel's log mean: forms of lines, and NVIDIA's numbers. A table, no code.

Forms by the kernel's and the drivers' sources; weights by what NVIDIA's catalogue asks for. Xid 13,
31, 43 and 45 follow from what a program or an earlier error did: they decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from lightkeeper.worker_server.wire import Weight

BROKEN, ENDED, SLOW, CONTEXT = Weight.BROKEN, Weight.ENDED, Weight.SLOW, Weight.CONTEXT
_B: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?"


class Form(NamedTuple):
    """One form of line."""

    code: str
    weight: Weight
    pattern: re.Pattern[str]
    text: str
    """With the pattern's groups by name, and `device`."""
    device: str = ""


def _form(code: str, weight: Weight, pattern: str, text: str, device: str = "") -> Form:
    return Form(code, weight, re.compile(pattern.replace("{B}", _B)), text, device)


XID: Final = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<bdf>{_B})(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?P<n>\d+)"
    r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name=(?P<comm>[^,]*))?(?:, (?P<rest>.*))?$"
)
NVLINK5: Final = re.compile(r"^\w+(?:/\w+)*\s+(?P<sev>Fatal|Nonfatal)\s+XC\d\s")
RECOVERY: Final = re.compile(
    r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to (?P<code>0x[0-9a-f]+)"
    r" \((?P<new>[^)]*)\)"
)
SXID: Final = re.compile(
    rf"nvidia-nvswitch(?P<sw>\d+): SXid \(PCI:{_B}\): (?P<n>\d{{5}}), (?P<sev>Fatal|Non-fatal)\b"
    r"(?:, Link (?P<link>\d+))?"
)
OOM_LIMIT: Final = re.compile(r"^memory: usage \d+kB, limit (?P<kb>\d+)kB")
OOM_SUMMARY: Final = re.compile(
    r"^oom-kill:constraint=CONSTRAINT_\w+,.*?(?:(?P<glob>global_oom)|oom_memcg=(?P<mcg>[^,]*)),"
    r"task_memcg=(?P<tcg>[^,]*),task=(?P<comm>.*),pid=(?P<pid>\d+),uid=\d+$"
)
OOM_KILL: Final = re.compile(
    r"^(?:Out of memory(?: \(oom_kill_allocating_task\))?|(?P<cg>Memory cgroup) out of memory): "
    r"Kill(?:ed)? process (?P<pid>\d+)(?:, UID \d+,)? \((?P<comm>.{0,15})\)"
    r"(?= total-vm:| score |\.?$)"
)

FORMS: Final[tuple[Form, ...]] = (
    _form("gpu-off-bus", BROKEN, r"NVRM:(?: The NVIDIA GPU| GPU) (?P<bdf>{B})(?:: GPU has fallen "
          r"off the bus| \(PCI ID)", "{device}: fallen off the bus", "gpu"),
    _form("gpu-off-bus", BROKEN, r"NVRM: fallen off the bus and is not responding",
          "a GPU: fallen off the bus"),
    _form("amdgpu-ring", CONTEXT, r"amdgpu (?P<bdf>{B}): .*ring \S+ timeout, but soft recovered",
          "{device}: a ring timed out and recovered", "gpu"),
    _form("amdgpu-ring", SLOW, r"amdgpu (?P<bdf>{B}): .*ring (?P<ring>\S+) timeout, signaled seq=",
          "{device}: ring {ring} timed out", "gpu"),
    _form("amdgpu-lost", BROKEN, r"amdgpu (?P<bdf>{B}): .*(?:GPU reset ?\(\d+\) failed|"
          r"GPU Recovery Failed)", "{device}: its reset failed", "gpu"),
    _form("amdgpu-reset", SLOW, r"amdgpu (?P<bdf>{B}): .*(?:GPU reset begin|VRAM is lost due to "
          r"GPU reset)", "{device}: is reset, its memory is lost", "gpu"),
    _form("amdgpu-reset", CONTEXT, r"amdgpu (?P<bdf>{B}): .*GPU reset(?: ?\(\d+\))? succeeded",
          "{device}: was reset", "gpu"),
    _form("amdgpu-ras", BROKEN, r"amdgpu (?P<bdf>{B}): .*\b(?!0 )\d+(?: new)? uncorrectable "
          r"hardware errors? .*?in (?P<blk>[a-z0-9_]+) block",
          "{device}: uncorrectable errors in {blk}", "gpu"),
    _form("amdgpu-ras", CONTEXT, r"amdgpu (?P<bdf>{B}): .*\b(?!0 )\d+(?: new)? (?P<k>correctable|"
          r"deferred) hardware errors? .*?in (?P<blk>[a-z0-9_]+) block",
          "{device}: {k} errors in {blk}", "gpu"),
    _form("crash", ENDED, r"^traps: (?P<comm>.{1,15})\[(?P<pid>\d+)\] (?P<k>general protection "
          r"fault|trap [\w ]+?) (?:ip|rip)[: ]", "pid {pid} ({comm}): {k}"),
    _form("segfault", ENDED, r"^(?P<comm>.{1,15})\[(?P<pid>\d+)\]: segfault at [0-9a-f]+ ip "
          r"[0-9a-f]+ sp [0-9a-f]+ error [0-9a-f]+(?: in (?P<lib>[^\[]+)\[)?",
          "pid {pid} ({comm}): segmentation fault in {lib}"),
    _form("hung-task", SLOW, r"INFO: task (?P<comm>.+):(?P<pid>\d+) (?:blocked(?: in I/O wait)? "
          r"for more than (?P<s>\d+) seconds)",
          "pid {pid} ({comm}) has waited in the kernel for more than {s} s"),
    _form("hung-task", SLOW, r"INFO: task (?P<comm>.+):(?P<pid>\d+) is blocked on an? "
          r"(?P<lk>\S+).*?owned by task (?P<ocomm>.+):(?P<opid>\d+)",
          "pid {pid} ({comm}) waits in the kernel for a {lk} of pid {opid} ({ocomm})"),
    _form("soft-lockup", SLOW, r"watchdog: BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for \d+s!",
          "{device}: stuck in the kernel", "CPU {cpu}"),
    _form("mce", BROKEN, r"\[Hardware Error\]: event severity: fatal",
          "a fatal error of the hardware"),
    _form("mce", CONTEXT, r"\[Hardware Error\]: (?P<t>event severity: \w+|Machine check events "
          r"logged)", "hardware error: {t}"),
    _form("edac-ue", BROKEN, r"EDAC (?P<mc>MC\d+): \d+ UE ", "{device}: uncorrectable memory error",
          "{mc}"),
    _form("edac-ce", CONTEXT, r"EDAC (?P<mc>MC\d+): \d+ CE ", "{device}: corrected memory errors",
          "{mc}"),
    _form("cpu-thermal", SLOW, r"CPU(?P<cpu>\d+): (?P<u>Core|Package) temperature above threshold",
          "{u} too hot: CPUs throttled"),
    _form("io-error", SLOW, r"^(?:blk_update_request: |print_req_error: )?(?P<k>I/O|critical "
          r"(?:medium|target|space allocation|nexus)|timeout|recoverable transport|protection) "
          r"error, dev (?P<dev>[\w-]+), sector \d+", "{device}: {k} error", "{dev}"),
    _form("io-error", SLOW, r"^Buffer I/O error on dev(?:ice)? (?P<dev>[\w-]+), logical block",
          "{device}: I/O error", "{dev}"),
    _form("read-only", BROKEN, r"^(?:EXT4-fs|XFS) \((?:device )?(?P<dev>[\w-]+)\): .*(?:Remounting "
          r"filesystem read-only|[Ss]hutting down filesystem)",
          "{device}: its file system was taken out of service", "{dev}"),
    _form("fs-error", SLOW, r"^EXT4-fs error \(device (?P<dev>[\w-]+)\)",
          "{device}: error of its file system", "{dev}"),
    _form("fs-error", CONTEXT, r"^EXT4-fs warning \(device (?P<dev>[\w-]+)\)",
          "{device}: warning of its file system", "{dev}"),
    _form("fs-error", SLOW, r"^XFS \((?P<dev>[\w-]+)\): .*(?:error|[Cc]orruption)",
          "{device}: error of its file system", "{dev}"),
    _form("disk-gone", BROKEN, r"^(?:nvme|block) (?P<dev>nvme\w+): (?:Disabling device after reset "
          r"failure: -?\d+|.*no available path - failing I/O)", "{device}: gone", "{dev}"),
    _form("disk-timeout", SLOW, r"^nvme (?P<dev>nvme\w+): (?:I/O (?:tag )?\d+ .*?QID \d+ timeout, "
          r"|controller is down; will reset)", "{device}: does not answer", "{dev}"),
    _form("raid", BROKEN, r"^md/raid\S*: ?Disk failure on (?P<dev>\w+), disabling device",
          "{device}: failed, out of its RAID", "{dev}"),
    _form("raid", BROKEN, r"^md/raid\S*: ?.*failing array", "a RAID has failed"),
    _form("nfs", SLOW, r"^nfs: server (?P<srv>\S+) not responding, (?:still trying|timed out)$",
          "NFS server {srv} does not respond", "{srv}"),
    _form("nfs-ok", CONTEXT, r"^nfs: server (?P<srv>\S+) OK$", "NFS server {srv} responds again",
          "{srv}"),
    _form("link", CONTEXT, r"^mlx5_core {B} (?P<if>\S+): Link (?P<st>up|down)$",
          "{device}: link {st}", "{if}"),
    _form("nic-context", CONTEXT, r"^mlx5_core (?P<bdf>{B})(?: \S+)?: [a-z]\w+:\d+:\(pid \d+\): .*"
          r"(?:Port module event|Temperature|Cable|insufficient power|recovery succeeded)",
          "{device}: note of its driver", "{bdf}"),
    _form("nic-broken", BROKEN, r"^mlx5_core (?P<bdf>{B})(?: \S+)?: [a-z]\w+:\d+:\(pid \d+\): .*"
          r"(?:miss count|Fatal error|unrecoverable|recovery failed|compromised|bad device|slot is "
          r"unavailable)", "{device}: the network card is compromised", "{bdf}"),
    _form("nic-trouble", SLOW, r"^mlx5_core (?P<bdf>{B})(?: \S+)?: [a-z]\w+:\d+:\(pid \d+\): .*"
          r"(?:[Hh]ealth|synd|timeout|error state)", "{device}: trouble of the network card",
          "{bdf}"),
    _form("link", CONTEXT, r"^(?:ixgbe|i40e|ice|bnxt_en|igb|e1000e) {B} (?P<if>\S+): NIC Link is "
          r"(?P<st>Up|Down)", "{device}: link {st}", "{if}"),
    _form("nic-broken", BROKEN, r"^(?:ixgbe|i40e|ice|bnxt_en|igb|e1000e) {B} (?P<if>\S+): Adapter "
          r"removed", "{device}: the network card is gone", "{if}"),
    _form("nic-trouble", SLOW, r"^(?:ixgbe|i40e|ice|bnxt_en|igb|e1000e) {B} (?P<if>\S+): (?:"
          r"Detected Tx Unit Hang|initiating reset due to )", "{device}: does not send", "{if}"),
    _form("nic-trouble", SLOW, r"^ena (?P<bdf>{B})(?: \S+)?: (?:Keep alive watchdog timeout|"
          r"Trigger reset is on|Resetting the device|Reset attempt failed)",
          "{device}: the network card is reset", "{bdf}"),
    _form("nic-trouble", SLOW, r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<if>[^\s:]+).*transmit queue "
          r"\d+ timed out", "{device}: does not send", "{if}"),
    _form("pcie", BROKEN, r"(?P<bdf>{B}):(?: AER:)? PCIe Bus Error: severity=Uncorrect(?:ed|able) "
          r"\(Fatal\)",
          "{device}: fatal PCIe error", "{bdf}"),
    _form("pcie", SLOW, r"(?P<bdf>{B}):(?: AER:)? PCIe Bus Error: severity=Uncorrect(?:ed|able) "
          r"\(Non-Fatal\)", "{device}: PCIe error", "{bdf}"),
    _form("pcie", CONTEXT, r"(?P<bdf>{B}):(?: AER:)? PCIe Bus Error: severity=Corrected",
          "{device}: corrected PCIe errors", "{bdf}"),
)  # fmt: skip
"""The first form that fits counts. Device `gpu`: the GPU at `bdf`."""


class Xid(NamedTuple):
    weight: Weight
    about: str
    """`GPU`, `program`, `link`, `memory` (the GPU's)."""
    meaning: str


XIDS: Final[Mapping[int, Xid]] = {
    **dict.fromkeys((8, 11, 25, 32), Xid(CONTEXT, "program", "broken commands")),
    13: Xid(CONTEXT, "program", "exception in a kernel"),
    31: Xid(CONTEXT, "program", "page fault in a kernel"),
    **dict.fromkeys((37, 38, 44, 66, 67), Xid(CONTEXT, "program", "error of the driver")),
    43: Xid(CONTEXT, "program", "the program's work was stopped"),
    45: Xid(CONTEXT, "program", "the program's work was removed, after an earlier error"),
    46: Xid(SLOW, "GPU", "stopped processing"),
    48: Xid(BROKEN, "memory", "double-bit ECC error"),
    54: Xid(SLOW, "GPU", "power cable not connected"),
    62: Xid(BROKEN, "GPU", "its controller halted"),
    63: Xid(CONTEXT, "memory", "a bad row or page was replaced"),
    64: Xid(BROKEN, "memory", "a bad row or page could not be replaced"),
    74: Xid(SLOW, "link", "NVLink error"),
    78: Xid(CONTEXT, "GPU", "virtual GPU not started"),
    79: Xid(BROKEN, "GPU", "fallen off the bus"),
    92: Xid(CONTEXT, "memory", "many corrected ECC errors"),
    94: Xid(CONTEXT, "memory", "contained ECC error"),
    95: Xid(BROKEN, "memory", "uncontained ECC error"),
    109: Xid(SLOW, "GPU", "context switch timed out"),
    110: Xid(SLOW, "GPU", "security fault"),
    119: Xid(BROKEN, "GPU", "its firmware does not answer"),
    120: Xid(BROKEN, "GPU", "error of its firmware"),
    136: Xid(SLOW, "GPU", "needs a reset"),
    137: Xid(CONTEXT, "link", "access over NVLink without right"),
    140: Xid(SLOW, "memory", "unrecovered ECC error"),
    143: Xid(SLOW, "GPU", "did not start"),
    **dict.fromkeys(range(144, 151), Xid(SLOW, "link", "NVLink error")),
    154: Xid(CONTEXT, "GPU", "recovery action"),
    155: Xid(SLOW, "link", "NVLink error by the driver"),
    156: Xid(SLOW, "GPU", "a part was retired"),
    158: Xid(SLOW, "GPU", "fatal timeout"),
    171: Xid(CONTEXT, "memory", "detail of Xid 48"),
    172: Xid(CONTEXT, "memory", "detail of Xid 48"),
}
UNLISTED: Final = Xid(CONTEXT, "program", "no known meaning for the host")
SXIDS: Final[Mapping[str, str]] = {
    "10": "host", "11": "ingress", "12": "egress", "13": "state", "14": "state", "15": "routing",
    "16": "port", "17": "control", "18": "control", "19": "link", "20": "link", "22": "firmware",
    "23": "crossbar", "24": "tracking", "25": "link", "26": "firmware", "28": "optics",
    "29": "multicast", "30": "multicast",
}  # fmt: skip
"""Of which part of a switch, by the first two digits."""
