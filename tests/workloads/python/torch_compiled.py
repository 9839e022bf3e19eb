"""Trains models that torch.compile makes, with Triton: by default and with CUDA graphs.

Prints one JSON object: the shapes of the results, how many CUDA graphs torch.compile left out, and
whether the cache of Triton (TRITON_CACHE_DIR) has kernels. Waits for the end of its input before it
ends. Kernels of the simulated GPU compute nothing. So the script uses no value that it reads back.
"""

import json
import os
import pathlib
import sys

import torch
from torch import nn
from torch._dynamo.utils import counters

STEPS = 5
WIDTH, BATCH = 64, 16


def trained(mode):
    """Trains a compiled model for some steps. Returns the shape of the result."""
    torch.compiler.reset()
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    compiled = torch.compile(net, mode=mode)
    batch = torch.randn(BATCH, WIDTH, device="cuda")
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        result = compiled(batch)
        result.square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return list(result.shape)


def main():
    said = {mode: trained(mode) for mode in ("default", "reduce-overhead")}
    said["graphs left out"] = counters["inductor"]["cudagraph_skips"]
    said["has kernels"] = any(pathlib.Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
