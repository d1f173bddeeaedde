"""What must survive the monitor: incidents, decisions, evictions, the quarantine, targets,
notices.
"""
