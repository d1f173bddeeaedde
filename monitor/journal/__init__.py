"""What every tick saw and decided, on disk; and its replay.

Belongs here: how a snapshot, a result and the pipeline's memory become lines of JSON and come back
(`memory`, `entries`: pure), the files (`writer`), and the replay (`replay`). Nothing here judges:
the pipeline does.

A file is gzip, one line a tick, each `CRC32 JSON`; the first line is the head.
`docs/offline.md` has more.
"""
