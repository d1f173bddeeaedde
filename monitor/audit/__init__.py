"""Audit: of every incident who decided what on which evidence, how long it took, what it cost.

Belongs here: the account of an incident (`intervals`, `amounts`, `account`: pure), totals over many
(`totals`), and the audit log (`lines`, `logfile`). Not here: who is evicted (policy), what is
remembered (store), and the loop that keeps the books (`keeper.auditor`). Theory of operation: an
incident, its decisions and its evictions are remembered anyway; what has to be noted while it
happens is only how many ranks there were and where the group ran (`facts`). All the rest is
computed from these whenever somebody looks, so that a better formula holds for old incidents too.
What is not known stays unknown: an `Amount` without bounds, never zero. Formulas and sources:
docs/audit.md.
"""
