"""A reporter that writes down what the trainer tells it."""

from contextlib import contextmanager

from lightkeeper.worker_server.rank.null_reporter import NullReporter


class FakeReporter:
    """Follows the contract of `lightkeeper.attach()`."""

    url = None

    def __init__(self):
        self.told = []

    @contextmanager
    def phase(self, name):
        self.told.append(name)
        yield

    def begin_step(self, step):
        self.told.append(("begin", step))

    def end_step(self, step, *, committed, loss=None, tokens=0):
        self.told.append(("end", step, committed, tokens))

    def finite(self, *, loss=None, grad_norm=None, where="local"):
        finite = NullReporter().finite(loss=loss, grad_norm=grad_norm)
        if not finite:
            self.told.append(("not finite", where))
        return finite

    def fingerprint(self, parameters, step, *, every=None, shard=None, replicas_equal=True):
        """Not told: it is said of every committed step."""

    def observe_manager(self, manager):
        self.told.append(("manager", manager.current_step()))

    def close(self):
        self.told.append("closed")
