"""What a person reads of a running monitor on a terminal, and a script in a pipe. Pure.

Belongs here: the fleet as the API tells it (`fleet`), the four answers of `status` (`answers`),
which rows are wanted and in which order (`rows`), the screen of `top` (`topscreen`), and lines of
cells that fit a width (`grid`). A line is a list of (text, style) pairs. Not here: asking a
monitor, painting (commands).
"""
