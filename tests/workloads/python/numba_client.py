"""A numba-cuda program: adds vectors in two streams with pinned memory and events.

Then it takes all device memory.

Prints one JSON object with its own counts, and stays until its standard input ends."""

import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

ELEMENTS = 1 << 16
THREADS = 256
CHUNK_BYTES = 64 << 20

# The program keeps its memory, so that its parent process sees the memory on the account.
held = []


@cuda.jit("void(float32[:], float32[:], float32[:])")
def add(a, b, c):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


def add_vectors(launches):
    """Launches `launches` kernels. Returns the time between the events, ms."""
    streams = [cuda.stream(), cuda.stream()]
    started, ended = cuda.event(), cuda.event()
    pinned = cuda.pinned_array(ELEMENTS, dtype=np.float32)
    pinned[:] = 1
    blocks = ELEMENTS // THREADS
    started.record(streams[0])
    arrays = [[cuda.to_device(pinned, stream=stream) for _ in range(3)] for stream in streams]
    for i in range(launches):
        lane = i % len(streams)
        add[blocks, THREADS, streams[lane]](*arrays[lane])
    for stream, (_, _, result) in zip(streams, arrays):
        result.copy_to_host(pinned, stream=stream)
        stream.synchronize()
    ended.record(streams[0])
    ended.synchronize()
    return cuda.event_elapsed_time(started, ended)


def fill_memory():
    """Takes memory until no more is left. Returns the bytes, and the error's class and code."""
    try:
        while True:
            held.append(cuda.device_array(CHUNK_BYTES, dtype=np.uint8))
    except CudaAPIError as error:
        return {"bytes": len(held) * CHUNK_BYTES, "error": type(error).__name__, "code": int(error.code)}


def main():
    launches = int(sys.argv[1])
    elapsed_ms = add_vectors(launches)
    free, total = cuda.current_context().get_memory_info()
    filled = fill_memory()
    said = {"kernel_launches": launches, "elapsed_ms": elapsed_ms, "free": free, "total": total, "filled": filled}
    print(json.dumps(said), flush=True)
    sys.stdin.read()


main()
