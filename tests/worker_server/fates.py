"""What may happen to rank 1 of a pair; apart from `gloo_parent`, which imports torch."""

from tests.deep import EXPLORES

FATES = ("healthy", "hung", "gil", "sigstop", "sigkill", "segfault", "exception")
DEAD = frozenset({"sigkill", "segfault", "exception"})

HAMMERED = (
    "normal", "exception", "sys_exit", "os_exit", "sigterm", "sigkill", "sigabrt", "segfault",
    "forks",
)  # fmt: skip
"""Endings of `torch_parent` that come while torch's control plane answers requests."""

SAY = {
    "normal": [], "sys_exit": [], "sys_exit_text": ["no more data"], "sigterm_handled": [],
    "daemon_threads": [], "forks": [], "os_exit": [], "sigterm": [], "sigkill": [], "sigabrt": [],
    "segfault": [],
}  # fmt: skip
"""Endings of which it is known what they print on stderr; `make explore` tries it without us."""


def ways_of(ending: str) -> tuple[str, ...]:
    """How the rank lives before it; who is hammered is attached, too."""
    if EXPLORES:
        return ("plain", "attached", "hammered") if ending in HAMMERED else ("plain", "attached")
    attached = "hammered" if ending in HAMMERED else "attached"
    return (attached,) if ending in SAY else ("plain", attached)
