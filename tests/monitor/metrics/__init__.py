"""The monitor's metrics: what they hold, how many there are, and what goodput counts."""
