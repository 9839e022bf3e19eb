"""Trains a tiny model for many steps. Arguments: the step of the first look at the process, and the last.

Prints at both steps one JSON object: the resident memory of the process in bytes, and the numbers of
its descriptors and threads.
"""

import gc
import json
import os
import resource
import sys

import torch

# Between two synchronisations, the steps must fit into the queue of a stream.
SYNC_EVERY = 10


def look(step):
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    counts = {what: len(os.listdir(f"/proc/self/{folder}")) for what, folder in (("descriptors", "fd"), ("threads", "task"))}
    print(json.dumps({"step": step, "resident_bytes": resident} | counts), flush=True)


def main():
    looks = [int(argument) for argument in sys.argv[1:]]
    weights = torch.zeros(8, device="cuda", requires_grad=True)
    batch = torch.ones(8, device="cuda")
    optimizer = torch.optim.SGD([weights], lr=0.1, fused=True)
    for step in range(1, looks[-1] + 1):
        optimizer.zero_grad()
        (weights * batch).sum().backward()
        optimizer.step()
        if step % SYNC_EVERY == 0:
            torch.cuda.synchronize()
        if step in looks:
            gc.collect()
            look(step)
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
