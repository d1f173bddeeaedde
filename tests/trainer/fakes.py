"""A reporter that writes down what the trainer tells it."""

from contextlib import contextmanager


class FakeReporter:
    """Follows the contract of `worker_server.attach()`."""

    url = None

    def __init__(self):
        self.told = []
        self.inside = None

    @contextmanager
    def phase(self, name):
        assert self.inside is None, f"phase {name} inside phase {self.inside}"
        self.inside = name
        self.told.append(name)
        try:
            yield
        finally:
            self.inside = None

    def begin_step(self, step):
        self.told.append(("begin", step))

    def end_step(self, step, *, committed, loss=None, tokens=0):
        self.told.append(("end", step, committed, tokens))

    def observe_manager(self, manager):
        self.told.append(("manager", manager.current_step()))

    def close(self):
        self.told.append("closed")
