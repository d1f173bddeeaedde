"""One monitor process put together.

Belongs here: opening and closing in order (`service`), the parts that the loop drives (`parts`),
what is made again at each handover (`deeds`), the options (`options`) and what they are by default
(`folders`), and what this process is among (`surroundings`). Not here: how any part works, and the
command line (`commands`).
"""

from monitor.service.options import Options, StartError
from monitor.service.service import TOKENLESS, Service

__all__ = ["TOKENLESS", "Options", "Service", "StartError"]
