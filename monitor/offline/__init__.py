"""What is read after the fact: recorded timings, and a forecast of what faults will cost. Pure.

Belongs here: the table of a job's operations (`timings`), who slows the job by it (`slow`), and the
share of the time a job will train (`goodput`). Not here: flight records (`records`), and what a
monitor sees while a job runs (`detect`). Imports `model` and `records`; only commands import it.
"""
