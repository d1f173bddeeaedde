"""The commands in a piece of shell: as many as bash would start, word by word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

_OPERATORS = {";", ";;", "&&", "||", "|", "&", "(", ")", "<(", "|&"}
_REDIRECTIONS = {">", ">>", "<", ">&", "2>", "<<<"}
_OPENING = {"do", "then", "else", "elif", "if", "while", "until", "{", "!", "time"}
_CLOSING = {"done", "fi", "esac", "}"}
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)(\+?=)(.*)$", re.DOTALL)
_COMMENT = re.compile(r"^#.*$|\s#( .*)?$")


@dataclass(frozen=True)
class Command:
    """One program with its words."""

    words: tuple[str, ...]
    variables: tuple[str, ...] = field(default=())
    """Set for it alone."""

    @property
    def program(self) -> str:
        return self.words[0]


def without_comments(text: str) -> str:
    return "\n".join(_COMMENT.sub("", line) for line in text.splitlines())


def lines(text: str) -> list[str]:
    """Logical lines: continued ones joined, `for` to `done` and `case` to `esac` in one."""
    joined = re.sub(r"\\\n\s*", " ", without_comments(text))
    logical: list[str] = []
    depth = 0
    for line in joined.splitlines():
        if not line.strip():
            continue
        if depth:
            logical[-1] += "\n" + line
        else:
            logical.append(line)
        depth += len(re.findall(r"(?:^|[;|&]|\bdo|\bthen)\s*(?:for|case|while|if)\s", line))
        depth -= len(re.findall(r"(?:^|[;\s])(?:done|esac|fi)\b", line))
    return logical


def commands(text: str) -> Iterator[Command]:
    """Everything that is started, also inside of `$(...)`."""
    text = without_comments(text)
    while (begin := text.find("$(")) >= 0:
        end = _closing(text, begin + 1)
        if not text.startswith("$((", begin):  # which is arithmetic
            yield from commands(text[begin + 2 : end])
        text = f"{text[:begin]}SUBSTITUTED{text[end + 1 :]}"
    for line in lines(text):
        for part in line.split("\n"):
            yield from _of_line(part)


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that opens here is closed."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"not closed: {text[at:]}")


def _of_line(line: str) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.wordchars += "$@:,{}[]%+^!"
    words: list[str] = []
    skip = False
    depth = 0
    for token in lexer:
        depth += token == "("
        if skip:
            skip = False
        elif token == ")" and not depth:  # a pattern of `case`
            words = []
        elif token in _REDIRECTIONS:
            skip = True
            if words and words[-1].isdigit():
                words.pop()
        elif token in _OPERATORS:
            yield from _one(words)
            words = []
        else:
            words.append(token)
    yield from _one(words)


def _one(words: list[str]) -> Iterator[Command]:
    while words and words[0] in _OPENING | _CLOSING:
        words = words[1:]
    if not words or words[0] in {"for", "case"} or words[-1:] == ["in"]:
        return
    variables = []
    while words and (assigned := _ASSIGNED.match(words[0])):
        variables.append(assigned[1])
        words = words[1:]
    if words and words[0] == "export":
        names = [word.partition("=")[0] for word in words[1:]]
        yield Command(tuple(words), tuple(names))
    elif words:
        yield Command(tuple(words), tuple(variables))
    elif variables:
        yield Command(("export",), tuple(variables))
