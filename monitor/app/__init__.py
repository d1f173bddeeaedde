"""The monitor over HTTP: JSON API, web page, `/metrics`. Flask on waitress, one process.

Belongs here: routes, authentication, the page. Reads an immutable `View` and nothing that the
loop is changing. Does not belong here: any decision.
"""

from monitor.app.desk import Desk
from monitor.app.factory import create_app
from monitor.app.serve import ServeError, Server, is_loopback, parse_bind

__all__ = ["Desk", "ServeError", "Server", "create_app", "is_loopback", "parse_bind"]
