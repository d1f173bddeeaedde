"""A bundle of evidence turned into what its incident's page shows, by a process of its own.

Belongs here: that process (`draw`). Not here: who starts and bounds it (`evidence.drawings`), what
graph, strips and stacks look like (`reports`), reading bundles (`dumps`). It imports neither
fleet nor HTTP: a page waits for it to start.
"""
