"""The subcommands: `command` says how to declare one, `cli` has the table of them.

Belongs here: options, one-line errors, printing. A command returns its exit status: 0 done,
1 the monitor is away or refused, 2 wrong arguments. `analyze` has its
own: 1 is a fault found.
"""
