"""The few fields that the gate reads of TorchFT's messages. Pure; None means: pass it on.

torchft.proto of 0.2.0: LighthouseHeartbeatRequest{1: replica_id}, LighthouseQuorumRequest{1:
QuorumMember}, QuorumMember{1: replica_id, 2: address, 3: store_address, 4: step, 5: world_size,
6: shrink_only, 7: data, 8: commit_failures}. 0.1.1 has no field 8. Fields that are not known
are skipped, and nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from monitor.gate.protobuf import VARINT, fields, varint
from monitor.names import Host, ReplicaId

PREFIX_BYTES: Final = 5
"""Of a gRPC message: one byte whether it is compressed, four for its length."""
_ID_MAX_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for a quorum."""

    replica_id: ReplicaId
    address: str
    store_address: str
    step: int
    world_size: int
    commit_failures: int

    @property
    def host(self) -> Host | None:
        """The host that its manager's address names."""
        return host_of(self.address)


def whole(data: bytes | bytearray) -> bool | None:
    """Whether this is a whole gRPC message; None: it is compressed or more than one."""
    if len(data) < PREFIX_BYTES:
        return False
    if data[0]:
        return None
    missing = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big") - len(data)
    return missing == 0 if missing >= 0 else None


def read_heartbeat(data: bytes) -> ReplicaId | None:
    """Whose heartbeat it is."""
    try:
        return _id(dict(_fields(data[PREFIX_BYTES:])).get(1))
    except ValueError:
        return None


def read_asking(data: bytes) -> Asking | None:
    """Who asks for a quorum, and what it says of itself."""
    try:
        requester = dict(_fields(data[PREFIX_BYTES:])).get(1)
        if not isinstance(requester, bytes):
            return None
        member = dict(_fields(requester))
        replica_id = _id(member.get(1))
        if replica_id is None:
            return None
        return Asking(
            replica_id=replica_id,
            address=_text(member.get(2)),
            store_address=_text(member.get(3)),
            step=_signed(member.get(4)),
            world_size=_signed(member.get(5)),
            commit_failures=_signed(member.get(8)),
        )
    except ValueError:
        return None


def host_of(address: str) -> Host | None:
    """`node-7` of `http://node-7:41533`, as lower case; None where there is none."""
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:
        return None
    return Host(host.rstrip(".")) if host else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values; of a field that comes twice, the last one counts.

    Raises:
        ValueError: it is not a protobuf message.
    """
    for field in fields(data, 0, len(data)):
        if field.kind == VARINT:
            yield field.number, varint(data, field.value_at, field.end)[0]
        else:
            yield field.number, data[field.begin : field.end]


def _id(value: int | bytes | None) -> ReplicaId | None:
    if not isinstance(value, bytes) or not 0 < len(value) <= _ID_MAX_BYTES:
        return None
    return ReplicaId(value.decode())  # UnicodeDecodeError is a ValueError


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace")[:1024] if isinstance(value, bytes) else ""


def _signed(value: int | bytes | None) -> int:
    if not isinstance(value, int):
        return 0
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
