"""A source of steps and phases that writes down what it is told."""

from __future__ import annotations

from contextlib import contextmanager


class WrittenDown:
    """Stands for `reporter.from_source(...)`, and for the reporter that gives it."""

    def __init__(self):
        self.said = []
        self.closed = False

    def from_source(self, name):
        self.said.append(f"from {name}")
        return self

    @contextmanager
    def phase(self, name):
        self.said.append(f"<{name}")
        yield
        self.said.append(f"{name}>")

    def begin_step(self, step):
        self.said.append(f"begin {step}")

    def end_step(self, step, *, committed, loss=None, tokens=0):
        self.said.append(f"end {step} {committed} {loss} {tokens}")

    def step(self, step):
        self.said.append(f"step {step}")

    count_step = step

    def note_loss(self, loss):
        self.said.append(f"loss {loss}")

    def close(self):
        self.closed = True

    def take(self):
        taken, self.said = self.said, []
        return taken
