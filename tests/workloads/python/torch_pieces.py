"""Uses many parts of PyTorch: graphs, streams, kinds of layers, several processes, two GPUs.

Prints one JSON object: for each part its result, or the error's class. Waits for the end of its
input before it ends. Kernels of the simulated GPU compute nothing. So a result is a shape, a number
of steps, or a value that only moved.
"""

import json
import os
import signal
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

STEPS = 3


def trained(net, *inputs):
    """Trains for some steps. Returns the shape of the result."""
    net = net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        result = net(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        result.float().square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return list(result.shape)


def convolution():
    """Trains without cuDNN, with cuDNN's first engine, and with the fastest one of a search."""
    shapes = []
    for flags in ({"enabled": False}, {"enabled": True}, {"enabled": True, "benchmark": True}):
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(4)
        )
        with torch.backends.cudnn.flags(**flags):
            shapes.append(trained(net, torch.randn(2, 3, 16, 16, device="cuda")))
    return shapes


class Bottleneck(nn.Module):
    """A block of ResNet-50: its last convolution has four times the channels of the others."""

    def __init__(self, before, width, stride):
        super().__init__()
        sizes = ((before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        parts = []
        for ins, outs, size, step in sizes:
            convolution = nn.Conv2d(ins, outs, size, step, size // 2, bias=False)
            parts += [convolution, nn.BatchNorm2d(outs), nn.ReLU()]
        self.body, self.past = nn.Sequential(*parts[:-1]), nn.Identity()
        if stride != 1 or before != 4 * width:
            past = nn.Conv2d(before, 4 * width, 1, stride, bias=False)
            self.past = nn.Sequential(past, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return functional.relu(self.body(x) + self.past(x))


def resnet():
    """Trains ResNet-50 with small images, mixed precision and AdamW. Returns its parameters too."""
    net = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, stride, blocks in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for block in range(blocks):
            net.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    net = nn.Sequential(*net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)).cuda()
    images = torch.randn(4, 3, 64, 64, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = net(images)
            loss = scores.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()
    return sum(weights.numel() for weights in net.parameters()), list(scores.shape)


def loader():
    """Loads two rounds of batches by workers that stay, and a part of a third."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    batches = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True
    )
    sums = [batch.cuda(non_blocking=True).cpu().sum().item() for _ in range(2) for (batch,) in batches]
    (last,) = next(iter(batches))
    return sums, last.is_pinned()


def recurrence():
    # The stand-in for cuDNN has no recurrent layers.
    with torch.backends.cudnn.flags(enabled=False):
        return trained(nn.LSTM(8, 8, batch_first=True), torch.randn(2, 4, 8, device="cuda"))


def attention():
    shapes = []
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            result = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            result.sum().backward()
        shapes.append(list(q.grad.shape))
    torch.cuda.synchronize()
    return shapes


def graph():
    net = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.Adam(net.parameters(), capturable=True)
    x = torch.randn(4, 16, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        step()
    for _ in range(STEPS):
        captured.replay()
    torch.cuda.synchronize()
    return list(net.weight.grad.shape)


def streams():
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(1 << 16, device="cuda")
    lanes = [torch.cuda.Stream() for _ in range(4)]
    begun.record()
    for lane in lanes:
        lane.wait_event(begun)
        with torch.cuda.stream(lane):
            for _ in range(STEPS):
                x.add_(1)
    for lane in lanes:
        torch.cuda.current_stream().wait_stream(lane)
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) > 0


def copies():
    there = torch.arange(1000.0).pin_memory().cuda(non_blocking=True)
    return torch.equal(there.cpu(), torch.arange(1000.0))


def shared_with_child(queue, answers):
    values = queue.get()
    answers.put((list(values.cpu().tolist()), values.is_cuda))
    del values


def spawned_process():
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=shared_with_child, args=(queue, answers))
    child.start()
    values = torch.arange(4.0).cuda()
    queue.put(values)
    answer = answers.get(timeout=100)
    child.join()
    return answer


def forked_process():
    """Returns the class of the error with which PyTorch refuses the GPU in a forked child."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            torch.ones(1, device="cuda")
            said = "no error"
        except RuntimeError as error:
            said = type(error).__name__
        os.write(writing, said.encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 100).decode()


def ended_process(end):
    """Returns the exit status of a forked child that never used the GPU and ends so."""
    child = os.fork()
    if child == 0:
        end()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def two_gpus():
    values = torch.arange(8.0).to("cuda:0").to("cuda:1").cpu()
    net = nn.DataParallel(nn.Linear(8, 8).cuda())
    net(torch.randn(4, 8, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    return torch.cuda.device_count(), torch.cuda.can_device_access_peer(0, 1), values.tolist()


def distributed():
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        values = torch.tensor([1.0, 2.0]).cuda()
        dist.all_reduce(values)
        net = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda(0), device_ids=[0])
        net(torch.randn(4, 8, device="cuda:0")).sum().backward()
        torch.cuda.synchronize()
        dist.destroy_process_group()
    return values.cpu().tolist()


def outcome(part):
    try:
        return part()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def main():
    parts = {
        "convolution": convolution,
        "ResNet-50": resnet,
        "loader": loader,
        "recurrence": recurrence,
        "attention": attention,
        "graph": graph,
        "streams": streams,
        "copies": copies,
        "spawned process": spawned_process,
        "forked process": forked_process,
        "ended by SIGTERM": lambda: ended_process(lambda: os.kill(os.getpid(), signal.SIGTERM)),
        "two GPUs": two_gpus,
        "distributed": distributed,
    }
    print(json.dumps({name: outcome(part) for name, part in parts.items()}), flush=True)
    sys.stdin.read()
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
