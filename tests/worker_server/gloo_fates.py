"""What may happen to rank 1 of a pair; apart from `gloo_parent`, which imports torch."""

FATES = ("healthy", "hung", "gil", "sigstop", "sigkill", "segfault", "exception")
DEAD = frozenset({"sigkill", "segfault", "exception"})
