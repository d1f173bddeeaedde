"""Workers that make rollouts and meet at a barrier, beside a thread that reports their load."""

import os
import threading
import time

import tools
import torch
import torch.distributed as dist
import trouble


def report_load(group):
    """Every rank learns how busy all of them are."""
    random = torch.Generator().manual_seed(dist.get_rank())
    while True:
        load = torch.tensor(os.getloadavg()[:1])
        dist.all_reduce(load, group=group)  # @thread_reduces
        time.sleep(0.05 + 0.1 * torch.rand(1, generator=random).item())


def start_reporter(group):
    threading.Thread(target=report_load, args=(group,), name="load-reporter", daemon=True).start()


def roll_out(step, random):
    tools.compute(tools.STEP_S * (0.5 + torch.rand(1, generator=random).item()))
    return torch.tensor([float(step)])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random = torch.Generator().manual_seed(100 + rank)
    if os.environ.get("OWN_GROUP"):
        start_reporter(dist.new_group(backend="gloo"))
    manager = make_manager() if "TORCHFT_LIGHTHOUSE" in os.environ else None
    step, reward = 0, torch.zeros(1)
    while True:
        if trouble.now("shares_group"):
            start_reporter(None)
        if manager is not None:
            manager.start_quorum()
        reward = roll_out(step, random)
        dist.monitored_barrier()  # @main_at_barrier
        if manager is None:
            step += 1
            tools.log_step(rank, step)
            continue
        manager.allreduce(reward).wait()
        manager.should_commit()
        step = manager.current_step()
        if rank == 0:
            tools.logger.info(
                "[%s] loss = %.4f, participants = %s", step, reward, manager.num_participants()
            )


def make_manager():
    from torchft import Manager, ProcessGroupGloo

    return Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ["MIN_REPLICAS"]),
        load_state_dict=lambda state: None, state_dict=dict,
        replica_id=f"train_{os.environ['REPLICA_GROUP_ID']}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
