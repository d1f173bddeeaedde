"""The gate: a transparent pass-through in front of the Lighthouse that can refuse.

Belongs here: the process `lightkeeper gate` and its admin port. Does not belong here: whom to
refuse. The gate decides nothing, imports nothing of the monitor that does, and keeps running when
the monitor is gone.

From the bottom up: `http2` (frames and connections), `messages` (TorchFT's calls), `denylist` (what
monitor and gate exchange: whom to refuse, who is there), `calls` (who calls, and whether it may),
`quorum_ids`, `upstream` (the Lighthouse), `proxy` (clients and their calls), `listener` (new
clients), `overlap` (one gate follows another), `serve` (the process: what outlives it, admin port).
"""

if __name__ != "lightkeeper.gate":
    raise ImportError(f"`{__name__}` is `lightkeeper.gate` now", name=__name__)
