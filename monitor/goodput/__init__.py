"""How much of the time a fault-tolerant job trains: arithmetic.

Belongs here: a job, its faults and how they are answered (`scenario`), two closed forms
(`formulas`), the published case and the ways that are compared (`cases`), the sweep
over sizes. All of it pure. A simulation that checks the formulas stands among the tests.
Does not belong here: options and printing (`monitor.commands.goodput`, `monitor.reports.goodput`).
"""
