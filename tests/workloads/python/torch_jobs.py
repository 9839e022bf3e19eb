"""Jobs of PyTorch: a service, and trainings that end in several ways. Arguments: the name of a job,
and for a service perhaps the number of requests, and the time within which it should answer, ms.

Each job says in one JSON object what it did. Kernels of the simulated GPU compute nothing. So a job
uses no value that it reads back.
"""

import json
import os
import random
import signal
import sys
import time

import torch
from torch import nn

WIDTH, CLASSES, BATCH = 256, 10, 32
REQUESTS, MOST_PAUSE_S = 200, 0.02
# Requests whose times do not count, because the driver first loads the kernels.
WARM_UP_REQUESTS = 20
STEPS = 20


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)).cuda()


def say(**said):
    print(json.dumps(said), flush=True)


class Training:
    def __init__(self):
        self.net = net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), fused=True)
        self.batch = torch.randn(BATCH, WIDTH, device="cuda")
        self.done = 0

    def step(self):
        self.optimizer.zero_grad()
        loss = self.net(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        loss.item()
        self.done += 1

    def steps(self, count):
        for _ in range(count):
            self.step()


def service(requests=REQUESTS, slo_ms=None):
    """Answers requests, with pauses in which the GPU has nothing to do, and then waits for the end of its input.
    With an SLO, also times the answers."""
    model, copies = net().eval(), torch.cuda.Stream()
    pause, answered, took_ms = random.Random(7), 0, []
    with torch.inference_mode():
        for number in range(requests):
            if number == WARM_UP_REQUESTS and slo_ms is not None:
                say(warm=True)
            began = time.monotonic()
            request = torch.full((pause.randint(1, BATCH), WIDTH), 1.0).pin_memory()
            with torch.cuda.stream(copies):
                here = request.cuda(non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            here.record_stream(torch.cuda.current_stream())
            answered += len(model(here).softmax(1).cpu())
            took_ms.append((time.monotonic() - began) * 1e3)
            time.sleep(pause.random() * MOST_PAUSE_S)
    times = {}
    if slo_ms is not None:
        timed = took_ms[WARM_UP_REQUESTS:]
        times = {"late": sum(took > slo_ms for took in timed) / len(timed), "slowest_ms": max(timed)}
    say(requests=requests, answered=answered, peak=torch.cuda.max_memory_allocated(), **times)
    sys.stdin.read()
    os._exit(0)


def exception():
    training = Training()
    training.steps(STEPS)
    say(steps=training.done)
    raise ValueError("this job ends so")


def out_of_memory():
    training = Training()
    training.steps(STEPS)
    say(steps=training.done)
    pieces = []
    while True:
        pieces.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))


def killed():
    """Trains until a signal ends it."""
    training = Training()
    training.step()
    say(steps=training.done)
    while True:
        training.step()


def checkpoint():
    """Trains until SIGTERM, copies its weights to the host, and ends."""
    ends = []
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    training = Training()
    training.step()
    say(steps=training.done)
    while not ends:
        training.step()
    weights = {name: value.cpu() for name, value in training.net.state_dict().items()}
    say(ended_by=ends, saved={name: list(value.shape) for name, value in weights.items()})
    os._exit(0)


JOBS = {job.__name__: job for job in (service, exception, out_of_memory, killed, checkpoint)}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*map(int, sys.argv[2:]))
