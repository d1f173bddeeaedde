"""The monitor: looks at every rank, names the sick one, and drives its eviction.

One process anywhere, CPU only, never imports torch. Once per tick: observe (targets, poller,
Lighthouse), decide (pipeline: pure), act (evictors). The layers and who may import whom are
contracts in pyproject.toml. Of `worker_server` it imports `wire` and nothing else.
"""
