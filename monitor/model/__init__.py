"""The nouns: names, configuration, what was seen, what is said of it. Values, no behaviour. Pure.

Everybody may import it; it imports nothing of ours but the WorkerServer's wire.
"""
