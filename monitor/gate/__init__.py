"""The gate: a transparent pass-through in front of the Lighthouse that can refuse.

Belongs here: the process `lightkeeper gate` and what it says on its admin port. Does not belong
here: whom to refuse. The gate decides nothing; it imports nothing of the monitor that does, and
runs on when the monitor is gone.

From below: `http2` (frames and connections), `messages` (what TorchFT says), `denylist` (what
monitor and gate tell each other: whom to refuse, who is there), `calls` (who calls, and whether it
may), `quorum_ids`, `upstream` (the Lighthouse), `proxy` (clients and their calls), `listener`
(clients that come), `serve` (one process: state on disk, admin port), `hot_restart` (a process that
dies is nobody's loss).
"""
