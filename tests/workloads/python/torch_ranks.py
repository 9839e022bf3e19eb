"""Trains with two ranks over NCCL, each in a process of its own. Argument: the number of GPUs.

Prints one JSON object: the ranks, and the steps of each. The ranks live until the end of the input.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
STEPS = 20


def train(rank, gpus, meeting, answers, end):
    torch.cuda.set_device(rank % gpus)
    device = torch.device("cuda", rank % gpus)
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, device_id=device
    )
    # The ranks begin with what their memory held, because no data moves between them.
    net = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), init_sync=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    answers.put((rank, step + 1))
    answers.close()
    answers.join_thread()
    end.wait()
    os._exit(0)


def main():
    gpus = int(sys.argv[1])
    context = torch.multiprocessing.get_context("spawn")
    answers, end = context.Queue(), context.Event()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        arguments = [(rank, gpus, meeting, answers, end) for rank in range(RANKS)]
        # A rank that waits for the end dies with this process, also after an error.
        ranks = [context.Process(target=train, args=each, daemon=True) for each in arguments]
        for rank in ranks:
            rank.start()
        said = sorted(answers.get(timeout=100) for _ in ranks)
        print(json.dumps({"ranks": [rank for rank, _ in said], "steps": [steps for _, steps in said]}), flush=True)
        sys.stdin.read()
        end.set()
        for rank in ranks:
            rank.join()


if __name__ == "__main__":
    main()
