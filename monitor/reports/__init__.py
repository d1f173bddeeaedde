"""What the analysis found, for people and for scripts: text, JSON, one HTML page.

Belongs here: words, tables. Not here: judging (`analysis`), reading files (`dumps`).
Whatever came out of a record (names, call sites, paths) is somebody else's text: it goes through
`wording.clean`, and in HTML through `markup.escaped`, before anybody sees it.
"""
