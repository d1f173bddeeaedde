"""The demo: a real fleet on one machine, faults one after another, and what each of them cost.

Belongs here: starting the processes that people start themselves (Lighthouse, monitor, one
supervisor with its torchrun per replica group), injecting faults, reading the monitor's API,
telling the story. Does not belong here: anything that a real job needs; it would be missing
where people run one. The monitor is spoken to over HTTP only.
"""
