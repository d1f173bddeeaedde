"""Tables of operation timings from disk: parquet or CSV, in bounded memory.

Belongs here: opening files, types of columns, missing values, the job's sizes in YAML. Not here:
what rows mean and who is slow (`stragglers`). pyarrow and yaml are imported when they are needed:
a monitor that runs for weeks never needs them.
"""
