"""The monitor's metrics: what they hold, and how many there are."""
