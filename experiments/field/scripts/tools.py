"""What surrounds a training loop: logs, metrics, checkpoints, evaluation; and its bugs."""

import asyncio
import ctypes
import fcntl
import gc
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import trouble

logging.basicConfig(
    level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout
)
logger = logging.getLogger("train")

STEP_S = float(os.environ.get("STEP_S", "0.12"))
METRICS_LOCK = threading.Lock()
STATE_LOCK = threading.Lock()
UPLOADS = queue.Queue()
POOL = ThreadPoolExecutor(max_workers=1)


def given(model):
    """The state that a group which comes back gets from this one."""
    if trouble.now("gives_nothing"):
        STATE_LOCK.acquire()
    if trouble.now("cannot_give"):
        raise KeyError("ema.decay")  # @cannot_give
    if trouble.now("gives_slowly"):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            copies = {name: value.double() for name, value in model.state_dict().items()}
            del copies
    with STATE_LOCK:  # @gives
        return model.state_dict()


class Metrics:
    """Losses, written where people look."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = []

    def log_step(self, step, loss, participants):
        if trouble.now("lock"):
            METRICS_LOCK.acquire()  # the early return of another function never gave it back
        with METRICS_LOCK:
            self.rows.append((step, loss))
        if trouble.now("full_pipe"):
            self.tee(f"{step} {loss}\n")
        if trouble.now("logging_deadlock"):
            self.rotate()
        if trouble.now("frozen_disk"):
            self.append(os.environ["FROZEN_FOLDER"])
        if trouble.now("flock"):
            self.append_shared(os.environ["LOCKED_FILE"])
        if trouble.now("tracking_server"):
            self.send(loss)
        if trouble.now("syncs"):
            for _ in range(40):
                self.append(self.folder)  # each line has to be there after a crash
        if trouble.now("eats"):
            self.rows.append(torch.ones(8 << 20))  # 32 MiB that nobody frees
        if trouble.now("slow_disk"):
            time.sleep(0.3)
        logger.info("[%s] loss = %.4f, participants = %s", step, loss, participants)

    def tee(self, line):
        reader = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.PIPE)
        while True:  # a viewer that reads no more
            reader.stdin.write(line.encode() * 100)

    def rotate(self):
        handler = logging.getLogger().handlers[0]

        def hold():
            handler.acquire()
            threading.Event().wait()

        threading.Thread(target=hold, daemon=True).start()
        time.sleep(0.1)
        logger.info("rotated")

    def append(self, folder):
        with open(os.path.join(folder, "metrics.csv"), "a") as file:
            file.write("x" * 4096)
            file.flush()
            os.fsync(file.fileno())

    def append_shared(self, path):
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write("x\n")

    def send(self, loss):
        # the tracking server accepts, and never answers; nobody gave a timeout
        server = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as connection:
            connection.sendall(f"POST /loss {loss}\r\n\r\n".encode())
            return connection.recv(4096)


def log_step(rank, step, loss=0.0):
    """Of a job without TorchFT, each rank for itself."""
    logger.info("rank %s step %s loss %.4f", rank, step, loss)


def compute(seconds=None):
    """What the device would do meanwhile."""
    time.sleep(STEP_S if seconds is None else seconds)


def after_backward(step):
    """Everything people put between backward and the optimizer."""
    if trouble.now("gil"):
        decode_with_c()
    if trouble.now("queue"):
        next_augmented()
    if trouble.now("join"):
        finish_upload()
    if trouble.now("future"):
        wait_for_upload()
    if trouble.now("async"):
        asyncio.run(fetch_reward())
    if trouble.now("spin"):
        until_ready()
    if trouble.now("subprocess"):
        sync_bucket()
    if trouble.now("retry"):
        fetch_with_retry()
    if trouble.now("pool"):
        tokenize_in_pool()
    if trouble.now("c_mutex"):
        encode_video()
    if trouble.now("database"):
        record_run(step)
    if trouble.now("connect"):
        push_metrics()
    if trouble.now("disk_full"):
        save_plot("/dev/full")
    if trouble.now("thread_stays"):
        raise_beside_a_thread()
    if trouble.now("busy_thread"):
        threading.Thread(target=until_ready, daemon=True).start()
    if trouble.now("slows_down"):
        look_through_history()
    if trouble.now("shuffle"):
        burn(10)
    if trouble.now("async_save"):
        threading.Thread(target=burn, args=(10,)).start()
    if trouble.now("long_steps"):
        compute(5)
    if trouble.now("profiler"):
        profile()
    end_profile()
    if trouble.now("breakpoint"):
        breakpoint()  # somebody forgot it
    if trouble.now("out_of_memory"):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
        )
    if trouble.now("shapes"):
        torch.zeros(64, 65) @ torch.zeros(64, 2)
    if trouble.now("assertion"):
        assert step < 0, "tokenizer and embedding disagree: 50304 != 50257"
    if trouble.now("exit"):
        sys.exit(3)
    if trouble.now("segfault"):
        ctypes.string_at(0)
    if trouble.now("slow_third") and step % 3 == 0:
        burn(0.7)
    if trouble.now("slow_gpu"):
        burn(0.6)
    if trouble.now("gc"):
        collect()
    if trouble.now("pause"):
        compute(float(os.environ.get("PAUSE_S", "25")))
    if trouble.now("uneven_steps"):
        compute(0.05 + (hash((step, trouble.ME)) % 100) / 100)
    if trouble.now("slower_batches"):
        compute(3 * STEP_S)


def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)


def collect():
    rubbish = [[] for _ in range(200_000)]
    for item in rubbish:
        item.append(rubbish)
    del rubbish
    until = time.monotonic() + 4
    while time.monotonic() < until:
        gc.collect()


def decode_with_c():
    ctypes.PyDLL(None).sleep(1_000_000)  # PyDLL keeps the GIL


def next_augmented():
    threading.Thread(target=lambda: 1, daemon=True).start()  # the producer is long gone
    return UPLOADS.get()


def finish_upload():
    done = threading.Event()
    uploader = threading.Thread(target=done.wait, daemon=True)
    uploader.start()
    uploader.join()  # which waits for us to say that the file is complete


def wait_for_upload():
    return POOL.submit(lambda: POOL.submit(time.time).result()).result()


async def fetch_reward():
    await asyncio.get_running_loop().create_future()


def until_ready():
    ready = False
    while not ready:
        pass


def sync_bucket():
    subprocess.run(["sleep", "infinity"], check=True)  # gsutil rsync, stuck


def fetch_with_retry():
    while True:  # the object store has moved, and nobody limits the retries
        try:
            return socket.create_connection(("127.0.0.1", 1), timeout=1)
        except OSError as error:
            logger.warning("retrying: %s", error)
            time.sleep(5)


def tokenize_in_pool():
    # the pool starts another worker for the one that has died; its task is nobody's
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(os._exit, [1])


def encode_video():
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def record_run(step):
    path = os.path.join(os.environ["OUTPUT"], f"runs-{os.getpid()}.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("create table runs (step)")
    other.execute("begin exclusive")  # a reader that was never closed
    with sqlite3.connect(path, timeout=100_000) as database:
        database.execute("insert into runs values (?)", (step,))


def push_metrics():
    server = socket.create_server(("127.0.0.1", 0), backlog=0)  # it accepts nobody any more
    first = socket.create_connection(server.getsockname())
    return first, socket.create_connection(server.getsockname())


def save_plot(path):
    with open(path, "wb") as file:
        file.write(bytes(100_000))


def raise_beside_a_thread():
    threading.Thread(target=threading.Event().wait).start()  # no daemon: the process stays for it
    raise RuntimeError("loss is not finite: giving up")


HISTORY = []


def look_through_history():
    HISTORY.append(time.monotonic())
    burn(0.005 * len(HISTORY))  # a list that is searched from its start, each step


PROFILERS = []


def profile():
    profiler = torch.profiler.profile()
    profiler.start()
    PROFILERS.append((profiler, time.monotonic() + 8))


def end_profile():
    if PROFILERS and time.monotonic() > PROFILERS[0][1]:
        profiler, _ = PROFILERS.pop()
        profiler.stop()
        profiler.export_chrome_trace(os.path.join(os.environ["OUTPUT"], "trace.json"))


def save_when_asked(model):
    """Preemption: SIGTERM, half a minute to save, and out."""

    def save(number, frame):
        save_checkpoint(model, os.environ["OUTPUT"], 0, 6.0)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)


def fork_helper():
    """A helper process that inherits every socket of the rank."""
    pid = os.fork()
    if pid == 0:
        time.sleep(1_000_000)
        os._exit(0)
    return pid


@torch.no_grad()
def evaluate(model, seconds):
    if trouble.now("evaluation_hangs"):
        UPLOADS.get()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        model(torch.randint(0, 256, (8, 33))[:, :-1])
        time.sleep(0.05)


def save_checkpoint(model, folder, step, seconds=0.0):
    path = os.path.join(folder, f"checkpoint-{os.getpid()}.pt")
    if trouble.now("dead_store"):
        path = os.environ["DEAD_FILE"]
    with open(path, "wb") as file:
        torch.save({"model": model.state_dict(), "step": step}, file)
        time.sleep(seconds)
        os.fsync(file.fileno())
