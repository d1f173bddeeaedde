"""Names of collectives and dtypes: one for each, whoever wrote the record.

A family is what the backend has to move, not the function that was called. One rank in
`all_gather` and another in `all_gather_into_tensor` issue the same transfer and complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_FAMILY: Final[Mapping[str, str]] = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "sparse_all_reduce": "all_reduce_sparse",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "all_reduce_barrier": "barrier",
    "isend": "send",
    "irecv": "recv",
    "recvanysource": "recv",
}
"""Recorded, lower case -> family. Names of ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp,
torchcomms and TorchFT as torch 2.13 and torchft 0.2.0 write them."""

_END_OF: Final[Mapping[str, str]] = {
    "coalesced": "coalesced",
    "allgather_coalesced": "all_gather",
    "reduce_scatter_coalesced": "reduce_scatter",
}
"""Entries that close a coalesced operation -> what the whole of it is. NCCL writes an uneven
all_gather as one `_broadcast_oop` a member, then `nccl:ALLGATHER_coalesced`; an uneven
reduce_scatter as `_reduce_oop`s, then `nccl:REDUCE_SCATTER_coalesced`; any other group of calls
ends in `nccl:coalesced`."""

POINT_TO_POINT: Final = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
REDUCING: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
SIZELESS: Final = frozenset({"barrier", "monitored_barrier", "coalesced", "split", "new_window"})
"""Nothing of what they carry has to agree: a barrier's one element is the backend's own."""
UNDECIDED: Final = frozenset({"all_to_all", "all_reduce_sparse"})
"""Sizes may differ between members of a healthy collective."""

_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "complexhalf": "complex32",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_UNDEFINED: Final = frozenset({"undefined", ""})
_ODD_WIDTHS: Final[Mapping[str, int]] = {"bool": 1, "quint4x2": 1, "quint2x4": 1}
_BITS = re.compile(r"[a-z]+?(?P<bits>\d+)(_\w+)?")
_PEERS = re.compile(r"\S+ (?P<left>\d+)(?P<arrow>->|<-)(?P<right>\d+)")


def op_name(recorded: str) -> str:
    """One name for one collective: `nccl:_all_gather_base` and `all_gather` are the same."""
    name = recorded.rpartition(":")[2].split(" ")[0]
    if name in ("ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"):
        return _END_OF[name.lower()]
    return _FAMILY.get(name.lower(), name.lower())


def closes_coalesced(recorded: str) -> bool:
    """Whether this entry only ends a coalesced operation, whose parts stand before it."""
    name = recorded.rpartition(":")[2]
    # other types of ops have no such entry, but endCoalescing would spell them the same way
    return name == "coalesced" or (name.endswith("_coalesced") and name[0].isupper())


def peers_of(recorded: str) -> tuple[int, int] | None:
    """Group ranks (from, to) in `nccl:send 0->1` and `nccl:recv 1<-0`; None: not in the name."""
    found = _PEERS.fullmatch(recorded)
    if found is None:
        return None
    left, right = int(found["left"]), int(found["right"])
    return (left, right) if found["arrow"] == "->" else (right, left)


def dtype_name(recorded: str | None) -> str | None:
    """One name for one dtype: `torch.float32`, `Float` and `float32` are the same.

    None where there is none: NCCL stands in an undefined tensor for the side that only the
    root of a gather or scatter has.
    """
    if recorded is None:
        return None
    name = recorded.rpartition(".")[2].lower()
    return None if name in _UNDEFINED else _DTYPES.get(name, name)


def dtype_nbytes(dtype: str) -> int | None:
    """Bytes of one element, by the name that `dtype_name` gives; None: not known."""
    if dtype in _ODD_WIDTHS:
        return _ODD_WIDTHS[dtype]
    found = _BITS.fullmatch(dtype)
    return None if found is None else max(1, int(found["bits"]) // 8)
