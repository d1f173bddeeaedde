"""Who is to blame, from the flight records of a job. Pure: a function of the records alone.

Belongs here: the wait-for graph, signatures, and the findings that follow from them; used offline
by `lightkeeper analyze` and online by the detectors. Not here: formats (`flight_recorder`), phases
and liveness (`detectors`), pages for people (`reports`).
"""
