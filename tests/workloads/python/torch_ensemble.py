"""Answers requests with a small network, first alone, and then in step with a second process.

Argument: the path of a socket. On the order `listen` on its input, the process waits for the second
one at this socket. On the order `join`, the process connects. From then on, both answer the same
requests: each begins a request only when both have answered the request before. On the order
`depart`, the requests get smaller from then on, so some kernels have fewer blocks. On the order
`longest NAME`, the process prints the name, and the longest time of an answer since the last such
order, us.

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


def ordered(orders):
    """Returns the words of the next order, or none. Ends the process at the end of its input."""
    if not select.select([orders], [], [], 0)[0]:
        return []
    return orders.readline().decode().split() or os._exit(0)


def join(path):
    other = socket.socket(socket.AF_UNIX)
    other.connect(path)
    return other


def listen(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("listens", flush=True)
        return listening.accept()[0]


def main():
    path = sys.argv[1]
    # Without a buffer, the kernel tells of each order that the process has not read.
    orders = open(0, "rb", buffering=0)
    net = Net().cuda().eval()
    batch = torch.ones(WIDE_BLOCKS * ROWS, WIDTH, device="cuda")
    with torch.inference_mode():
        for _ in range(WARM_UP_REQUESTS):
            net(batch).cpu()
        print("serves", flush=True)
        other, longest_s = None, 0
        while True:
            match ordered(orders):
                case ["join"]:
                    other = join(path)
                case ["listen"]:
                    other = listen(path)
                case ["depart"]:
                    batch = batch[ROWS:]
                case ["longest", name]:
                    print(name, round(longest_s * 1e6), flush=True)
                    longest_s = 0
            time.sleep(PAUSE_S)
            if other is not None:
                other.sendall(b".")
                if not other.recv(1):
                    os._exit(0)
            began = time.monotonic()
            net(batch).cpu()
            longest_s = max(longest_s, time.monotonic() - began)


if __name__ == "__main__":
    main()
