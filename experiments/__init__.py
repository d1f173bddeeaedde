"""Experiments: long runs of real jobs that something happens to, judged and written up.

Belongs here: one machine (`harness`), what a monitor said (`watch`), one fleet that outlives its
faults (`fleet`, `forks`), tables (`pages`), and a folder for each experiment: cases, judgement and
page. Results and pages are in evidence/. What CI runs, also of this, is in tests/.
"""
