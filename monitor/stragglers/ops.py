"""What an operation's name says about where its seconds go."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Role(StrEnum):
    """Whose time an operation takes."""

    OWN = "own"  # the rank's own work: forward, backward, loading data
    SEND = "send"  # to a neighbour in the pipeline; waits for it too
    RECEIVE = "receive"
    SHARED = "shared"  # a collective of the ranks of one stage; waits for the last of them
    OTHER = "other"  # pauses, optimizers that hold collectives, groups whose members are unknown


_OWN = ("compute", "data-load", "dataload")
_SHARED = ("reduce", "gather")
_SHARED_OF = ("grads-", "params-", "grad-", "param-")


def role(name: str) -> Role:
    """The role by name, in the words of the recorded jobs (`forward-compute`, `backward-send` ...).

    Collectives count as shared only if they are those of gradients or parameters over the ranks of
    a stage; those of the embedding connect two stages, those of layer norms the tensor-parallel
    peers, of which the table has no rows. An unknown name accuses nobody.
    """
    plain = name.strip().lower().replace("_", "-")
    if plain in {"forward", "backward"} or any(word in plain for word in _OWN):
        return Role.OWN
    if plain.endswith("send"):
        return Role.SEND
    if plain.endswith(("recv", "receive")):
        return Role.RECEIVE
    if plain.startswith(_SHARED_OF) and any(word in plain for word in _SHARED):
        return Role.SHARED
    return Role.OTHER


def direction(name: str) -> int:
    """+1 for what goes to the next stage (forward), -1 for what goes back."""
    return -1 if name.strip().lower().startswith("backward") else 1


def codes_of(names: Sequence[str], wanted: Role) -> NDArray[np.int16]:
    """Codes of the operations with a role."""
    found = [code for code, name in enumerate(names) if role(name) is wanted]
    return np.array(found, dtype=np.int16)
