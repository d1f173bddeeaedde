"""Flight records and recorded timings: read whatever wrote them, and say who is to blame. Pure.

The only code that knows PyTorch's own keys. It imports `model` and nothing else of ours.
"""
