"""Trains a perceptron with PyTorch: forward, backward, AdamW, mixed precision.

Kernels of the simulated GPU compute nothing, so the loss has no meaning there.
"""

import argparse
import os
import time

import torch
from torch import nn

WARM_UP_STEPS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="stop this long after the warm-up")
    parser.add_argument("--sync-every", type=int, default=1, help="steps between two looks at the loss")
    parser.add_argument("--log-every", type=int, default=50, help="steps between two lines of progress")
    parser.add_argument("--wait", action="store_true", help="wait for a line of input after the warm-up")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()

    layers = [part for _ in range(args.layers) for part in (nn.Linear(args.width, args.width), nn.ReLU())]
    net = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    batch = torch.randn(args.width, args.width, device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    for _ in range(WARM_UP_STEPS):
        step().item()
    print(f"warmed up; training with batches of {args.width}", flush=True)
    if args.wait:
        input()
    started = logged = time.monotonic()
    done = logged_at = 0
    while time.monotonic() - started < args.seconds:
        loss = step()
        done += 1
        if done % args.sync_every == 0:
            loss.item()
        if done % args.log_every == 0:
            value, now = loss.item(), time.monotonic()
            print(f"step {done}  loss {value:.4f}  {(done - logged_at) / (now - logged):.1f} steps/s", flush=True)
            logged, logged_at = now, done
    torch.cuda.synchronize()
    print(f"trained {done} steps in {time.monotonic() - started:.4f} s", flush=True)
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
