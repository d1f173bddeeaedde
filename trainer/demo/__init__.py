"""The demo: a real fleet on one machine, faults one after another, and what each of them cost.

Belongs here: starting the processes that users start themselves (Lighthouse, monitor, one
supervisor with its torchrun per replica group), injecting faults, reading the monitor's API,
reporting. Does not belong here: anything that a real job needs, because users would lack it there.
The demo talks to the monitor over HTTP only.
"""
