"""What people read is true: every page of docs/, the READMEs and what the code says of them.

`pages` reads Markdown, `shell` finds commands in it, `known` says what exists, `sandbox` is a small
real job on which the commands of the pages are run as they are printed.
"""
