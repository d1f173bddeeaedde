"""The fault campaign: faults drawn from a seed, hundreds of them on fleets that outlive them.

`soak` is healthy training on the same fleets. Both are on one page (evidence/campaign.md).
"""
