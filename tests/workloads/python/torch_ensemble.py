"""Answers requests with a small network, first alone, and then in step with a second process.

Argument: the path of a socket. On the order `listen` on its input, the process waits for the second
one at this socket. On the order `join`, the process connects. From then on, both answer the same
requests: each begins a request only when both have answered the request before.

The network has parts whose layers fill one SM of a small GPU, and then nine. Kernels of the
simulated GPU compute nothing. So the script uses no value that it reads back.
"""

import os
import select
import socket
import sys
import time

import torch
from torch import nn

WARM_UP_REQUESTS = 3
# The pause before a request, s.
PAUSE_S = 0.02
# The parts of the network, and the layers of each half of a part.
PARTS, LAYERS = 6, 2
# Rows for which the stand-in of cuBLAS has one block, and features for which the blocks do not
# grow.
ROWS, WIDTH = 128, 64
# Blocks of the first layer, and of the wide layers. The first layer begins a request.
STEM_BLOCKS, WIDE_BLOCKS = 2, 9


def layers(count):
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = layers(1)
        self.narrow = nn.ModuleList(layers(LAYERS) for _ in range(PARTS))
        self.wide = nn.ModuleList(layers(LAYERS) for _ in range(PARTS))

    def forward(self, x):
        head = self.stem(x[: STEM_BLOCKS * ROWS])
        for narrow, wide in zip(self.narrow, self.wide):
            head = narrow(x[:ROWS])
            x = wide(x)
        return head


def meet(path):
    """Connects to the second process if an order says so. Returns the connection, or None."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    order = sys.stdin.readline().strip()
    if order == "join":
        other = socket.socket(socket.AF_UNIX)
        other.connect(path)
        return other
    if order != "listen":
        os._exit(0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("listens", flush=True)
        return listening.accept()[0]


def main():
    path = sys.argv[1]
    net = Net().cuda().eval()
    batch = torch.ones(WIDE_BLOCKS * ROWS, WIDTH, device="cuda")
    with torch.inference_mode():
        for _ in range(WARM_UP_REQUESTS):
            net(batch).cpu()
        print("serves", flush=True)
        other = None
        while True:
            other = other or meet(path)
            time.sleep(PAUSE_S)
            if other is not None:
                other.sendall(b".")
                if not other.recv(1):
                    os._exit(0)
            net(batch).cpu()


if __name__ == "__main__":
    main()
