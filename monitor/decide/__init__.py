"""Incidents over ticks, the guards of an eviction, the operator's rules. Pure.

Each decision carries its reason; a "no" says which guard, why, and until when.
"""
