"""The gate: a transparent pass-through in front of the Lighthouse that can refuse.

Belongs here: the process `lightkeeper gate`, what it says on its admin port, and the client by
which the monitor talks to it. Does not belong here: whom to refuse. The gate decides nothing;
it imports nothing of the monitor that does, and runs on when the monitor is gone.
"""
