"""Everything that asks somebody: ranks, Lighthouse, gate, schedulers, people.

It decides nothing, and believes no answer before it has looked.
"""
