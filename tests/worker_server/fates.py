"""What may happen to rank 1 of a pair; apart from `gloo_parent`, which imports torch."""

FATES = ("healthy", "hung", "gil", "sigstop", "sigkill", "segfault", "exception")
DEAD = frozenset({"sigkill", "segfault", "exception"})

HAMMERED = (
    "normal", "exception", "sys_exit", "os_exit", "sigterm", "sigkill", "sigabrt", "segfault",
    "forks",
)  # fmt: skip
"""Endings of `torch_parent` that come while torch's control plane answers requests."""
