"""A PyCUDA program: launches in a stream with pinned memory and events.

Then it takes all device memory.

Prints one JSON object with its own counts, and stays until its standard input ends."""

import json
import sys

import numpy as np
import pycuda.driver as cuda

ELEMENTS = 1 << 16
THREADS = 256
CHUNK_BYTES = 64 << 20

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry scale(.param .u64 vector, .param .u32 size)
{
    ret;
}
"""

# The program keeps its memory, so that its parent process sees the memory on the account.
held = []


def scale_vector(launches):
    """Launches `launches` kernels. Returns the time between the events, ms."""
    kernel = cuda.module_from_buffer(PTX).get_function("scale")
    stream, started, ended = cuda.Stream(), cuda.Event(), cuda.Event()
    host = cuda.pagelocked_empty(ELEMENTS, dtype=np.float32)
    host[:] = 1
    vector = cuda.mem_alloc(host.nbytes)
    held.append(vector)
    started.record(stream)
    cuda.memcpy_htod_async(vector, host, stream)
    for _ in range(launches):
        kernel(vector, np.uint32(ELEMENTS), block=(THREADS, 1, 1), grid=(ELEMENTS // THREADS, 1), stream=stream)
    cuda.memcpy_dtoh_async(host, vector, stream)
    ended.record(stream)
    ended.synchronize()
    held.clear()
    del vector
    return started.time_till(ended)


def fill_memory():
    """Takes memory until no more is left. Returns the bytes, and the error's class and text."""
    try:
        while True:
            held.append(cuda.mem_alloc(CHUNK_BYTES))
    except cuda.MemoryError as error:
        return {"bytes": len(held) * CHUNK_BYTES, "error": type(error).__name__, "text": str(error)}


def main():
    launches = int(sys.argv[1])
    cuda.init()
    context = cuda.Device(0).make_context()
    elapsed_ms = scale_vector(launches)
    free, total = cuda.mem_get_info()
    filled = fill_memory()
    said = {"kernel_launches": launches, "elapsed_ms": elapsed_ms, "free": free, "total": total, "filled": filled}
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    held.clear()
    context.pop()


main()
