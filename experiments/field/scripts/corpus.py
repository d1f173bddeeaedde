"""The data set: a corpus in shards, as everybody has one, with what goes wrong in data loaders."""

import logging
import multiprocessing
import os
import re
import signal
import threading
import time

import torch
import trouble
from torch.utils.data import DataLoader, Dataset

CONTEXT = 32
CACHE_LOCK = threading.Lock()
SHARED_LOCK = multiprocessing.Lock()
LOGGER = logging.getLogger("corpus")
# nested quantifiers: a line of forty a's keeps `re` busy for years
URL = re.compile(r"^(([a-z])+.)+[A-Z]([a-z])+$")


class Corpus(Dataset):
    """Token ids of documents; a document is cut or padded to the context."""

    def __init__(self, length=4096, seconds=0.0, start=0):
        self.length = length
        self.seconds = seconds
        self.start = start

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        if trouble.now("dead_disk"):
            self.read_shard(os.environ["DEAD_FILE"])
        if trouble.now("read_timed_out"):
            self.fetch("https://data.example.org/shards/17")
        if trouble.now("slow_loader"):
            time.sleep(0.5)
        if trouble.now("hiccup"):
            time.sleep(3)
        if trouble.now("corrupt_shard"):
            self.parse(b"\x00\x01garbage")
        if trouble.now("cache_lock"):
            self.lookup(index)
        if trouble.now("regex"):
            self.clean("a" * 60)
        if trouble.now("worker_exits"):
            os._exit(3)
        if trouble.now("worker_segfault"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if trouble.now("fork_lock"):
            with SHARED_LOCK:
                self.wait_for_prefetch()
        generator = torch.Generator().manual_seed(self.start + index)
        return torch.randint(0, 256, (CONTEXT + 1,), generator=generator)

    def read_shard(self, path):
        with open(path, "rb") as file:
            return file.read()

    def fetch(self, url):
        raise ConnectionError(f"{url}: Read timed out. (read timeout=60)")  # @fetches

    def parse(self, line):
        if not line.startswith(b"{"):
            raise ValueError(f"shard-00017.jsonl: line 93 is not JSON: {line[:12]!r}")

    def lookup(self, index):
        # somebody returned early between acquire() and release()
        CACHE_LOCK.acquire()
        with CACHE_LOCK:
            return index

    def clean(self, line):
        return URL.match(line)

    def wait_for_prefetch(self):
        threading.Event().wait()


def batches(rank):
    """Without end, of the shard of this rank."""
    while True:
        yield from DataLoader(Corpus(start=1000 * rank), batch_size=4)
