from tests.monitor.journal.replayed import replayed

__all__ = ["replayed"]
