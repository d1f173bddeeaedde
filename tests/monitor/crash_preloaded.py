"""What all lives of a monitor share: each that compiled the templates took 0.4 s of CPU for it."""

from lightkeeper.monitor.show.web.paging import compile_templates
from tests.monitor import crash_life

__all__ = ["crash_life"]

compile_templates()
