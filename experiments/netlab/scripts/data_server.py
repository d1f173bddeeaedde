"""Batches over TCP: eight bytes say how many are wanted; after a zero it reads on and on.

Clients whose address is in the file `silent` of OUTPUT are heard, and never answered.
"""

import os
import socketserver
import sys


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        silent = os.path.join(os.environ["OUTPUT"], "silent")
        while asked := self.rfile.read(8):
            size = int.from_bytes(asked, "big")
            if size == 0:
                while self.request.recv(1 << 20):
                    pass
                return
            if os.path.exists(silent) and self.client_address[0] in open(silent).read().split():
                continue
            self.wfile.write(os.urandom(size))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


if __name__ == "__main__":
    Server(("", int(sys.argv[1])), Handler).serve_forever()
