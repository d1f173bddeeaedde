"""Jobs that are not DDP's alone: starts that go wrong, servers, rollouts, sharded optimizers."""

import fcntl
import http.server
import os
import queue
import time
import urllib.request
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import batches
from model import NextByte, loss_of
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.file_baton import FileBaton

SHAPE = os.environ.get("SHAPE", "zero")
STEPS = int(os.environ.get("STEPS", "1000000"))


def zero(rank):
    """The optimizer's state is in pieces; now and then it is put together on the first rank."""
    model = DistributedDataParallel(NextByte())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    for step, batch in enumerate(batches(rank), 1):
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()  # @zero_backward
        optimizer.step()
        if step % 25 == 0:
            optimizer.consolidate_state_dict(to=0)
        if trouble.now("consolidates_alone"):
            optimizer.consolidate_state_dict(to=0)  # @consolidates_alone
        tools.log_step(rank, step, loss.item())


def plain(rank):
    model = DistributedDataParallel(NextByte(layers=3 if trouble.now("deeper") else 2))  # @wraps
    optimizer = torch.optim.AdamW(model.parameters())
    for step, batch in enumerate(batches(rank), 1):
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        optimizer.step()
        if trouble.now("leaves"):
            os._exit(0)  # @leaves
        if trouble.now("returns_first"):
            return
        tools.log_step(rank, step, loss.item())


def build(rank):
    """Compile an extension; a lock file says that somebody else does."""
    baton = FileBaton(os.path.join(os.environ["OUTPUT"], "lock"))
    if trouble.now("stale_lock"):
        open(os.path.join(os.environ["OUTPUT"], "lock"), "w").close()
    if baton.try_acquire():
        try:
            tools.compute(0.5)
        finally:
            baton.release()
    else:
        baton.wait()  # @waits_for_build


def server(rank):
    """Workers send gradients and get weights; the first rank serves whoever comes."""
    model = NextByte()
    size = sum(p.numel() for p in model.parameters())
    if rank == 0:
        buffer, step = torch.zeros(size), 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        while True:
            sender = dist.recv(buffer)  # @serves
            at = 0
            for p in model.parameters():
                p.grad = buffer[at : at + p.numel()].view_as(p).clone()
                at += p.numel()
            optimizer.step()
            dist.send(torch.cat([p.data.flatten() for p in model.parameters()]), sender)
            step += 1
            tools.log_step(rank, step, 0.0)
    for step, batch in enumerate(batches(rank), 1):
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        if trouble.now("queue"):
            queue.Queue().get()  # @empty
        dist.send(torch.cat([p.grad.flatten() for p in model.parameters()]), 0)
        weights, at = torch.zeros(size), 0
        dist.recv(weights, 0)  # @gets_weights
        for p in model.parameters():
            p.data.copy_(weights[at : at + p.numel()].view_as(p))
            p.grad, at = None, at + p.numel()
        tools.log_step(rank, step, loss.item())


def rollouts(rank):
    """The first rank trains; the others generate for long, and send what they made."""
    model = NextByte()
    optimizer = torch.optim.AdamW(model.parameters())
    longest = float(os.environ.get("ROLLOUT_S", "12"))
    for step in range(1, STEPS):
        for p in model.parameters():
            dist.broadcast(p.data, 0)
        made = [torch.zeros(4, 33, dtype=torch.int64) for _ in range(dist.get_world_size())]
        mine = torch.zeros(4, 33, dtype=torch.int64)
        if rank:
            until = time.monotonic() + longest * (0.5 + 0.25 * rank)
            text = torch.zeros(4, 1, dtype=torch.int64)
            while time.monotonic() < until:
                if trouble.now("queue"):
                    queue.Queue().get()  # @rollout_empty
                with torch.no_grad():
                    text = torch.cat([text, model(text[:, -32:])[:, -1:].argmax(-1)], 1)
                time.sleep(0.01)
            mine = text[:, -33:].contiguous() if text.shape[1] >= 33 else mine
        dist.gather(mine, made if rank == 0 else None, 0)  # @gathers_rollouts
        if rank == 0:
            for batch in made[1:]:
                optimizer.zero_grad()
                loss_of(model(batch[:, :-1]), batch).backward()
                optimizer.step()
        tools.log_step(rank, step, 0.0)


class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3600000")
        self.end_headers()
        for _ in range(360):
            self.wfile.write(bytes(10_000))
            if self.path == "/stuck":
                time.sleep(1e6)
            time.sleep(0.1)

    def log_message(self, *args):
        pass


PORT = os.path.join(os.environ.get("OUTPUT", "."), "port")


def serve():
    """A server that is far away."""
    if not os.fork():
        site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        with open(PORT + ".new", "w") as file:
            file.write(str(site.server_port))
        os.rename(PORT + ".new", PORT)
        site.serve_forever()
    while not os.path.exists(PORT):
        time.sleep(0.1)


def fetch():
    with open(PORT) as file:
        port = file.read()
    path = "stuck" if trouble.now("stuck_download") else "data"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
        answer.read()  # @downloads


def download(rank):
    """The first rank fetches the data set, the others wait for it; LOCKED: the second by its lock."""
    if rank == 0:
        serve()
    if rank == 0 or (rank == 1 and os.environ.get("LOCKED")):
        with open(os.path.join(os.environ["OUTPUT"], "data.lock"), "w") as lock:
            time.sleep(2 * rank)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if rank == 0:
                fetch()
    dist.barrier()


def tags(rank):
    """Two neighbours hand tensors on, with a tag for each kind."""
    other = 1 - rank
    for step in range(1, STEPS):
        tools.compute()
        weights, stats = torch.ones(1000), torch.ones(10)
        tag = 3 if trouble.now("other_tag") else 2
        if rank == 0:
            dist.send(weights, other, tag=1)
            dist.send(stats, other, tag=2)
            dist.recv(weights, other, tag=1)  # @zero_receives
        else:
            dist.recv(weights, other, tag=1)
            dist.recv(stats, other, tag=tag)  # @one_receives
            dist.send(weights, other, tag=1)
        tools.log_step(rank, step, 0.0)


def ready(rank):
    """The first rank tells the others by the store that the shards are written."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        tools.compute(0.5)
        store.set("shards/raedy" if trouble.now("typo") else "shards/ready", "1")
    else:
        store.get("shards/ready")  # @waits_for_shards


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if SHAPE == "build":
        build(int(os.environ["RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=1800))  # @joins_others
    rank = dist.get_rank()
    if SHAPE == "download":
        download(rank)
    if SHAPE == "ready":
        ready(rank)
    {"zero": zero, "server": server, "rollouts": rollouts, "tags": tags}.get(SHAPE, plain)(rank)


if __name__ == "__main__":
    main()
