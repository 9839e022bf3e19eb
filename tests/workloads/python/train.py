"""Trains a small convolutional network on synthetic images: forward, backward, SGD, with the JIT."""
import argparse
import time

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context

CLASSES = 10
IMAGES = 512
JIT_WARM_UP_STEPS = 3


class Net:
    def __init__(self):
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.out = nn.Linear(32 * 5 * 5, CLASSES)

    def __call__(self, x):
        x = self.conv1(x).relu().max_pool2d(2)
        x = self.conv2(x).relu().max_pool2d(2)
        return self.out(x.flatten(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: no limit)")
    parser.add_argument("--seconds", type=float, default=0, help="stop this long after the JIT's warm-up (0: no limit)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.steps == 0 and args.seconds == 0:
        args.steps = 100

    Tensor.manual_seed(args.seed)
    images = Tensor.rand(IMAGES, 1, 28, 28).realize()
    labels = Tensor.randint(IMAGES, high=CLASSES).realize()
    net = Net()
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=args.lr)

    @TinyJit
    def step():
        optimizer.zero_grad()
        batch = Tensor.randint(args.batch, high=IMAGES)
        loss = net(images[batch]).sparse_categorical_crossentropy(labels[batch]).backward()
        return loss.realize(*optimizer.schedule_step())

    with Context(TRAINING=1):
        started = logged = time.monotonic()
        done = logged_at = 0
        while True:
            loss = step()
            done += 1
            if done == JIT_WARM_UP_STEPS:
                loss.item()
                started = logged = time.monotonic()
                logged_at = done
                print(f"compiled; training with batches of {args.batch}", flush=True)
            last = (args.steps and done >= args.steps) or (
                args.seconds and done > JIT_WARM_UP_STEPS and time.monotonic() - started >= args.seconds
            )
            if last or (done > JIT_WARM_UP_STEPS and done % args.log_every == 0):
                value = loss.item()
                now = time.monotonic()
                print(f"step {done}  loss {value:.4f}  {(done - logged_at) / (now - logged):.1f} steps/s", flush=True)
                logged, logged_at = now, done
            if last:
                break
        print(f"trained {done} steps", flush=True)


if __name__ == "__main__":
    main()
