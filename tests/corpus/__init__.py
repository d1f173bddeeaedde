"""Labelled flight records: simulated jobs with known faults, real captures, and the scoreboard.

The simulation knows who caused what; the analysis sees only the dumps that it writes. Nothing here
looks at how the analysis works, and nothing in the product imports it.
"""
