"""What is wrong now: the history of every rank, and a detector for each kind of fault. Pure.

Each detector is a function of the history. Add a new one in `detect.detectors`.
"""
