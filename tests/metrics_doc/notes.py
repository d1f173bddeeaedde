"""What the code of a rank's page and of the gate's does not say: how many series, and when none."""

from __future__ import annotations

from typing import Final

_NO_STEPS: Final = "no step reported"
_NO_TORCHFT: Final = "TorchFT never did it"
_NO_GROUPS: Final = "no collective yet"

_RANK_STEPS: Final = (
    "step", "attempts_total", "commits_total", "commit_failures_total", "tokens_total",
)  # fmt: skip
_TIMES: Final = (
    "checkpoint_staging",
    "checkpoint_load",
    "checkpoint_apply",
    "quorum",
    "reconfigure",
)

RANK: Final[dict[str, tuple[str, str]]] = {
    "lightkeeper_rank_alive": ("1", ""),
    "lightkeeper_rank_process_state": ("1", "/proc does not say"),
    "lightkeeper_rank_unhooked_functions": ("1", ""),
    "lightkeeper_rank_info": ("1", ""),
    **{f"lightkeeper_rank_{name}": ("1", _NO_STEPS) for name in _RANK_STEPS},
    "lightkeeper_rank_local_steps_total": ("1", "every step is voted on"),
    "lightkeeper_rank_committed_step": ("1", "no commit yet"),
    "lightkeeper_rank_last_commit_timestamp_seconds": ("1", "no commit yet"),
    "lightkeeper_rank_quorum_id": ("1", "no quorum yet, or not TorchFT"),
    "lightkeeper_rank_participants": ("1", "no quorum yet, or not TorchFT"),
    "lightkeeper_rank_loss": ("1", "no loss was reported"),
    "lightkeeper_rank_finite": ("1", "the program does not report it"),
    "lightkeeper_rank_nonfinite_attempts_total": ("1", "the program does not report it"),
    "lightkeeper_rank_fingerprint_step": ("1", "none since the last heal"),
    "lightkeeper_rank_phase_since_timestamp_seconds": ("1; over time P", _NO_STEPS),
    "lightkeeper_rank_phase_seconds_total": ("P, ≤ 16", _NO_STEPS),
    "lightkeeper_rank_user_total": ("≤ 16", "the program has none"),
    "lightkeeper_rank_communication_seconds_total": ("1", _NO_STEPS),
    "lightkeeper_rank_collective_enqueued": ("C, ≤ 64", _NO_GROUPS),
    "lightkeeper_rank_collective_completed": ("C, ≤ 64", _NO_GROUPS),
    "lightkeeper_rank_collective_lag": ("C, ≤ 64", _NO_GROUPS),
    "lightkeeper_rank_step_seconds": ("15", ""),
    "lightkeeper_rank_step_phase_seconds": ("15 x P", "phases that no step was in"),
    "lightkeeper_rank_steps_missed_total": ("1", ""),
    **{f"lightkeeper_rank_{name}_seconds": ("2", _NO_TORCHFT) for name in _TIMES},
    "lightkeeper_rank_checkpoint_staged_bytes_total": ("1", _NO_TORCHFT),
    "lightkeeper_rank_checkpoint_loaded_bytes_total": ("1", _NO_TORCHFT),
    "lightkeeper_rank_heals_total": ("1", "without TorchFT"),
}
"""Name -> series of one rank, and when it is left out."""

_ALWAYS: Final = (
    "heartbeats_total", "quorum_requests_total", "unread_total", "waved_total",
    "upstream_retries_total", "resent_total", "told_again_total", "bad_clients_total", "held",
    "quorum_requests_under_way", "upstream_up", "connections", "denials", "kept", "quorum_id",
    "lighthouse_restarts", "not_kept",
)  # fmt: skip

GATE: Final[dict[str, tuple[str, str]]] = {
    **{f"lightkeeper_gate_{name}": ("1", "") for name in _ALWAYS},
    "lightkeeper_gate_refused_total": ("3", ""),
}
"""The same of the gate."""
