"""docs/metrics.md, written from the code: every metric of the monitor, of a rank and of the gate.

    python -m tests.metrics_doc            write it
    python -m tests.metrics_doc --check    is the committed one what the code says?
    python -m tests.metrics_doc --measure  measure the pages first: minutes, gigabytes

In tests/, for it looks into the worker server and the gate, which the monitor's package may not.
"""
