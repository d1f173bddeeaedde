"""The monitor: polls every rank, names the faulty one, and drives its eviction.

One process anywhere, CPU only, never imports torch. Once per tick: observe (targets, poller,
Lighthouse), decide (pipeline: pure), act (evictors). The layers and their allowed imports are
contracts in pyproject.toml. Of `worker_server` it imports `wire` and nothing else.
"""

if __name__ != "lightkeeper.monitor":
    raise ImportError(f"`{__name__}` is `lightkeeper.monitor` now", name=__name__)
