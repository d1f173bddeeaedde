"""The subcommands: `command` says how one is declared, `cli` has the table of them.

Belongs here: options, one-line errors, printing. A command returns its exit status: 0 done,
1 the monitor is away or said no, 2 used wrongly. `analyze` has its
own: 1 is a fault found.
"""
