"""How much of the time a fault-tolerant job trains: arithmetic and simulation.

Belongs here: a job, its faults and how they are answered (`scenario`), two closed forms
(`formulas`), a discrete-event simulation to check them (`simulate`), the published case and the
ways that are compared (`cases`), what a running monitor has measured (`measured`), the sweep over
sizes and its plot. All of it pure: a generator of random numbers is passed in.
Does not belong here: options and printing (`monitor.commands.goodput`, `monitor.reports.goodput`).
"""
