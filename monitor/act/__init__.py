"""Everything that asks somebody: ranks, Lighthouse, gate, schedulers, people.

It decides nothing, and verifies every answer.
"""
