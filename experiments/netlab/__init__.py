"""A job on hosts of its own, and what it goes through when their network breaks."""
