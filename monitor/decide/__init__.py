"""What is done about it: incidents over ticks, the guards of an eviction, the rules. Pure.
Pure.

Each decision carries its reason; a "no" says which guard, why, and until when.
"""
