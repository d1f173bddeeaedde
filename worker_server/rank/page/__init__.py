"""The shared-memory page: a rank's reports, readable even when the rank cannot answer.

One file per rank process in the run directory, mapped by the rank (writer) and by its sidecar
(reader). The kernel keeps it when the rank is killed, so the last state survives SIGKILL. Belongs
here: the layout, the writer and the reader. Only the standard library and the wire; no HTTP, no
torch.
"""
