"""The shared-memory page: what a rank says of itself, readable when the rank cannot speak.

One file per rank process in the run directory, mapped by the rank (writer) and by its sidecar
(reader). The kernel keeps it when the rank is killed, so the last word survives SIGKILL.
Belongs here: the layout, the writer and the reader. The standard library and the wire
only; no HTTP, no torch.
"""
