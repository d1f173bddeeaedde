"""The nouns: names, configuration, observations, verdicts. Values, no behaviour. Pure.

Everybody may import it; it imports nothing of ours but the WorkerServer's wire.
"""
