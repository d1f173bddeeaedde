"""What every tick saw and decided, on disk; and the same deciding over again.

Belongs here: how a snapshot, a result and the pipeline's memory become lines of JSON and come
back (`memory`, `sightings`, `entries`, `lines`: pure), the files (`writer`, `shelf`, `reader`), and
what is made of them (`replay`, `whatif`: pure). Nothing here judges: that is the pipeline's.

A file is gzip, one line a tick, each `CRC32 JSON`; the first line is the head. `docs/replay.md` has
the format.
"""
