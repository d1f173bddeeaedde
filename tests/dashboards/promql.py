"""What a PromQL expression reads, and whether its answer grows with the fleet."""

import re

_KEYWORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "or", "and",
                       "unless", "bool", "offset", "inf", "nan"})  # fmt: skip
_FOLDS = frozenset({"sum", "min", "max", "avg", "count", "quantile"})
_FEW = frozenset({
    "phase", "health", "kind", "state", "severity", "to", "outcome", "guard", "stage", "cause",
    "reason", "detector", "queue", "sink", "le", "stat", "instance",
})  # fmt: skip
"""Labels with few values, however large the fleet."""
_BOUNDED = frozenset({"lightkeeper_rank_suspect"})
"""Metrics of ranks of which the exporter itself gives at most 100."""


def metrics(expr):
    """The metric names in `expr`; strings, matchers, ranges and label lists do not count."""
    bare = re.sub(r'"[^"]*"', " ", expr)
    bare = re.sub(r"\{[^}]*\}", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"@ (end|start)\(\)", " ", bare)
    found = re.finditer(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(\s*\()?", bare)
    return {m[1] for m in found if not m[2] and m[1].lower() not in _KEYWORDS}


def unbounded(expr):
    """Metrics of ranks or groups of which `expr` gives a series for each; empty: it is bounded.

    Bounded is what `topk($topn, ...)` picks, also by `and on (...)`, and what an aggregation
    folds over all labels but a few of few values.
    """
    if "topk($topn," in expr:
        return set()
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|@ end\(\)", "", expr)
    text = re.sub(r"(on|ignoring|group_left|group_right) ?\([^)]*\)", "", text)
    text = re.sub(r"(\w+) by \(([^)]*)\) ?\(", _mark, text)
    found, inside = set(), []
    for word, bracket in _words(text):
        if bracket == ")":
            inside.pop()
        elif bracket == "(":
            inside.append(word)
        elif not _FOLDS & set(inside):
            found.add(word)
    return {word for word in found - _BOUNDED if re.match(r"lightkeeper_(rank|group)_", word)}


def _mark(found):
    few = set(re.split(r",\s*", found[2])) <= _FEW
    return f"{found[1] if few else 'each'}("


def _words(text):
    for found in re.finditer(r"([\w:]*)(\()|(\))|([\w:]+)", text):
        yield (found[1], "(") if found[2] else ("", ")") if found[3] else (found[4], "")
