"""Every process of a fleet is killed in turn; training goes on or resumes by itself.

`make kill-each` does it to a fleet as people run it (torchrun, recipes' restarts);
`tests/experiments/test_killing.py` does it once to each role, on forked ranks, in CI.
"""
