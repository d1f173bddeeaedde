"""What a PromQL expression reads."""

import re

_KEYWORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "or", "and",
                       "unless", "bool", "offset", "inf", "nan"})  # fmt: skip


def metrics(expr):
    """The metric names in `expr`; strings, matchers, ranges and label lists do not count."""
    bare = re.sub(r'"[^"]*"', " ", expr)
    bare = re.sub(r"\{[^}]*\}", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"@ (end|start)\(\)", " ", bare)
    names = re.finditer(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(\s*\()?", bare)
    return {m[1] for m in names if not m[2] and m[1].lower() not in _KEYWORDS}
