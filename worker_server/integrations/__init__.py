"""What tells steps and phases for loops that do not report themselves.

Belongs here: one module a framework, each through `reporter.from_source(...)`, so that a loop's
own reports always win. Does not belong here: an import of the framework at import time, and
anything that could raise into it or make a GPU wait.
"""
