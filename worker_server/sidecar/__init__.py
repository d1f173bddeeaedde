"""The process beside a rank: answers for it while it hangs, is stopped, or is dead.

Belongs here: reading the page, the operating system and torch's control plane; the HTTP
server; eviction of this rank; the black box. Never imports torch (about 30 MB instead of
300) and never judges who is healthy.
"""
