"""Flight records from disk: files, folders, zips, in parallel.

Belongs here: finding and opening files, worker processes. Not here: formats (`flight_recorder`).
"""
