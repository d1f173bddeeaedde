"""What Prometheus makes of our pages, rules and alerts: by promtool, and by a real server."""
