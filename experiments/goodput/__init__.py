"""What faults cost a job's training time: two closed forms, and a simulation of both."""
