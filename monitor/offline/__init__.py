"""What is read after the fact: recorded timings. Pure.

Belongs here: the table of a job's operations (`timings`) and who slows the job by it (`slow`). Not
here: flight records (`records`), and what a monitor sees while a job runs (`detect`). Imports
`model` and `records`; only commands import it.
"""
