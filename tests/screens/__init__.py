"""Pictures of a real run: `make screenshots` (docs/index.md shows some of them).

A demo fleet of real ranks, one of which falls ill; the monitor's pages in Debian's chromium, and
the terminal's screens, taken when something is to be seen: while a rank hangs, while its group is
put out, and after it is back. Nothing is staged and nothing is drawn by hand.
"""
