"""Trains a small transformer with PyTorch, runs out of memory, and trains on.

Arguments: the number of steps before and after. Prints what a user can see of the allocator, the
tensors and the errors as one JSON object. Waits for the end of its input before it ends.

Kernels of the simulated GPU compute nothing. So the script uses no value that it reads back.
"""

import json
import os
import sys

import torch
from torch import nn

MIB = 1 << 20
# The script fills the memory in pieces of this size.
PIECE_BYTES = 64 * MIB
BATCH, LENGTH, WIDTH, CLASSES = 8, 32, 64, 10


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((LENGTH, WIDTH), float(index)), index % CLASSES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out(self.encoder(x).mean(1))


class Training:
    def __init__(self):
        self.net = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")
        loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, num_workers=1, pin_memory=True)
        self.batches = [(x.cuda(non_blocking=True), y.cuda(non_blocking=True)) for x, y in loader]
        self.done = 0

    def step(self):
        x, y = self.batches[self.done % len(self.batches)]
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = self.net(x)
            loss = nn.functional.cross_entropy(logits, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.done += 1
        loss.item()
        return logits

    def steps(self, count):
        for _ in range(count):
            logits = self.step()
        return {"shape": list(logits.shape), "dtype": str(logits.dtype), "steps": self.done}


def fill():
    """Takes memory until the allocator refuses. Returns the number of pieces, and the error."""
    pieces = []
    try:
        while True:
            pieces.append(torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        return len(pieces), type(error).__name__


def statistics():
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def main():
    steps = int(sys.argv[1])
    properties = torch.cuda.get_device_properties(0)
    said = {
        "torch": torch.__version__,
        "device": [properties.name, properties.major, properties.minor, properties.multi_processor_count],
        "total": torch.cuda.mem_get_info()[1],
        "allocator": torch.cuda.get_allocator_backend(),
    }
    training = Training()
    said["before"] = training.steps(steps) | statistics()
    said["pieces"], said["error"] = fill()
    torch.cuda.empty_cache()
    said["after"] = training.steps(steps) | statistics()
    torch.cuda.synchronize()
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
