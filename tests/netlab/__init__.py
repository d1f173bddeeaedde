"""What a job goes through when its network breaks: hosts of its own, with lightkeeper and without."""
