"""Metrics that dashboards and rules may use: what the monitor and the ranks export, by name.

`tests/integration/test_monitor_restart.py` asks a real monitor and a real rank for each.
"""

COUNTERS_AND_GAUGES = frozenset(
    {
        "up",
        # a rank's WorkerServer
        "lightkeeper_rank_alive",
        "lightkeeper_rank_step",
        "lightkeeper_rank_attempts_total",
        "lightkeeper_rank_commits_total",
        "lightkeeper_rank_phase_seconds_total",
        "lightkeeper_rank_loss",
        "lightkeeper_rank_tokens_total",
        "lightkeeper_rank_quorum_id",
        "lightkeeper_rank_participants",
        "lightkeeper_rank_last_commit_timestamp_seconds",
        "lightkeeper_rank_collective_enqueued",
        "lightkeeper_rank_collective_completed",
        "lightkeeper_rank_info",
        "lightkeeper_rank_finite",
        "lightkeeper_rank_commit_failures_total",
        "lightkeeper_rank_collective_lag",
        "lightkeeper_rank_communication_seconds_total",
        # the monitor
        "lightkeeper_build_info",
        "lightkeeper_ranks",
        "lightkeeper_groups",
        "lightkeeper_group_step",
        "lightkeeper_group_commits_total",
        "lightkeeper_group_in_quorum",
        "lightkeeper_group_last_heartbeat_timestamp_seconds",
        "lightkeeper_lighthouse_up",
        "lightkeeper_quorum_id",
        "lightkeeper_quorum_participants",
        "lightkeeper_incidents",
        "lightkeeper_incident_transitions_total",
        "lightkeeper_evictions_total",
        "lightkeeper_holds_total",
        "lightkeeper_quarantined_hosts",
        "lightkeeper_quarantined_groups",
        "lightkeeper_lemon_hosts",
        "lightkeeper_tick_lateness_seconds",
        "lightkeeper_poll_failures_total",
        "lightkeeper_detector_failures_total",
        "lightkeeper_detector_up",
        "lightkeeper_self_health",
        "lightkeeper_self_health_scale",
        "lightkeeper_store_errors_total",
        "lightkeeper_rank_busy_seconds",
        "lightkeeper_rank_wait_seconds",
        "lightkeeper_rank_suspect",
        "lightkeeper_fleet_busy_seconds",
        "lightkeeper_group_busy_seconds",
        "lightkeeper_group_wait_seconds",
        "lightkeeper_group_busy_skew_ratio",
        "lightkeeper_group_state",
        "lightkeeper_group_tokens_total",
        "lightkeeper_group_heals_total",
        "lightkeeper_group_commit_failures_total",
        "lightkeeper_group_last_checkpoint_load_seconds",
        "lightkeeper_group_last_checkpoint_apply_seconds",
        "lightkeeper_group_last_checkpoint_staging_seconds",
        "lightkeeper_group_last_reconfigure_seconds",
        "lightkeeper_job_info",
        "lightkeeper_quorum_formed_timestamp_seconds",
        "lightkeeper_incident_first_seen_timestamp_seconds",
        "lightkeeper_holding",
        "lightkeeper_effective_rank_seconds_total",
        "lightkeeper_ineffective_rank_seconds_total",
        "lightkeeper_saved_rank_seconds_total",
        "lightkeeper_spent_rank_seconds_total",
        "lightkeeper_paused",
        "lightkeeper_observe_mode",
        "lightkeeper_part_failures_total",
        "lightkeeper_notifications_total",
        "lightkeeper_queue_length",
        "lightkeeper_store_bytes",
        "lightkeeper_event_streams",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)
HISTOGRAMS = frozenset(
    {
        "lightkeeper_rank_step_seconds",
        "lightkeeper_incident_stage_seconds",
        "lightkeeper_tick_duration_seconds",
    }
)

EXPORTED = COUNTERS_AND_GAUGES | {
    f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")
}
