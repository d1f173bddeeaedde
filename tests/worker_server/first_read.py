"""Many threads that are the first to read a registration, as in a monitor that just started."""

import sys
import threading

from lightkeeper.worker_server import wire
from tests.worker_server.pages import identity

sys.setswitchinterval(1e-6)
BODY = wire.to_json(wire.Registration(identity(), "http://h:1", 15.0))
together = threading.Barrier(16)


def read() -> None:
    together.wait()
    wire.parse_registration(BODY)


threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
