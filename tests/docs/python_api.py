"""`python -m tests.docs.python_api`: write the Python API, from the code, into docs/phases.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import lightkeeper
from lightkeeper.worker_server.rank.reporter import Annotations, Reporter
from tests.docs.pages import DOCS

PAGE = DOCS / "phases.md"
BEGIN, END = "<!-- API: written by python -m tests.docs.python_api -->", "<!-- end of API -->"
CALLS: tuple[tuple[str, Callable[..., object]], ...] = (
    ("lightkeeper.attach", lightkeeper.attach),
    *((f"reporter.{name}", getattr(Reporter, name))
      for name in ("begin_step", "end_step", "step", "phase")),
    ("reporter.tag", Annotations.tag),
    ("reporter.count", Annotations.count),
    *((f"reporter.{name}", getattr(Reporter, name))
      for name in ("finite", "fingerprint", "observe_manager", "close", "detach")),
)  # fmt: skip


def rows() -> Iterator[str]:
    """One item for each call: its signature, and the first paragraph of its docstring."""
    for name, call in CALLS:
        signature = inspect.signature(call)
        parameters = [p for p in signature.parameters.values() if p.name != "self"]
        words = str(
            signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        )
        words = (
            words.replace("'", "")
            .replace('"', "")
            .replace("Literal[off, warn, refuse]", "str")
            .replace("where: str = local", 'where: str = "local"')
        )
        first = (inspect.getdoc(call) or "").partition("\n\n")[0]
        yield f"- `{name}{words}`: {' '.join(first.split())}"


def text() -> str:
    """The page with a new API."""
    before, rest = PAGE.read_text().split(BEGIN)
    return "\n".join([f"{before}{BEGIN}", "", *rows(), "", f"{END}{rest.split(END)[1]}"])


if __name__ == "__main__":
    PAGE.write_text(text())
