"""TorchFT's Manager across groups; inside a group, gradients are averaged by torch.distributed."""

import json
import os
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo

GROUP, RANK = os.environ["REPLICA_GROUP_ID"], int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
OUTPUT = os.environ["OUTPUT"]
STEP_S = 0.19
WIDTH = 128


class Shards:
    """Batches from a server, over one connection."""

    def __init__(self, address):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)))

    def read(self, size=WIDTH * 4):
        self.socket.sendall(size.to_bytes(8, "big"))
        data = bytearray()
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return torch.frombuffer(data, dtype=torch.uint8).float().view(4, WIDTH) / 255


def upload(address, megabytes):
    """Send so much each second, for ever: checkpoints, or logs of pictures."""
    host, port = address.split(":")
    block = bytes(1 << 20)
    with socket.create_connection((host, int(port))) as far:
        far.sendall((0).to_bytes(8, "big"))
        while True:
            for _ in range(megabytes):
                far.sendall(block)
                time.sleep(1 / megabytes)


def forked():
    """A helper that keeps whatever was open when it was made."""
    if os.fork() == 0:
        while True:
            time.sleep(3600)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shards = Shards(os.environ["DATA"]) if "DATA" in os.environ else None
    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=1, replica_id=GROUP,
        load_state_dict=model.load_state_dict, state_dict=model.state_dict,
        hostname=socket.gethostname(),
    )  # fmt: skip
    steps = open(os.path.join(OUTPUT, f"{GROUP}.{RANK}.jsonl"), "a", buffering=1)
    mine = f"{GROUP}.{RANK}"
    upload_when, fork_when = os.environ.get("UPLOADS") == mine, os.environ.get("FORKS") == mine
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        batch = shards.read() if shards else torch.rand(4, WIDTH)
        model(batch).square().mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        if WORLD_SIZE > 1:
            dist.all_reduce(gradients)
        manager.allreduce(gradients).wait()
        if manager.should_commit():
            optimizer.step()
            line = {"time": time.time(), "step": manager.current_step(),
                    "quorum": manager._quorum_id, "groups": manager.num_participants()}  # fmt: skip
            steps.write(json.dumps(line) + "\n")
        if upload_when and os.path.exists(os.path.join(OUTPUT, "upload")):
            upload_when = False
            far = os.environ["FAR"]
            threading.Thread(target=upload, args=(far, 20), daemon=True).start()
        if fork_when and manager.current_step() == 20:
            fork_when = False
            forked()


if __name__ == "__main__":
    main()
