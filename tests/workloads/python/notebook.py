"""Talks to a Jupyter kernel as a notebook does: runs cells, interrupts one, and restarts the kernel.

usage: notebook.py KERNELS, a folder with the kernelspec `deepres`. Prints one JSON object.
"""

import json
import sys

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

# Time within which a kernel starts or a cell ends on a busy machine, s.
LIMIT_S = 60

# A cell that allocates on the GPU, and prints the GPU's memory as the driver's function tells it.
CELL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value)
"""


def printed(client, code):
    """Runs a cell to its end. Returns the text that it printed."""
    texts = []

    def keep(message):
        if message["header"]["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=keep, timeout=LIMIT_S)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(texts)


def main():
    manager = KernelManager(
        kernel_name="deepres", kernel_spec_manager=KernelSpecManager(kernel_dirs=[sys.argv[1]])
    )
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT_S)
    first = int(printed(client, CELL))

    endless = client.execute("print('began', flush=True)\nwhile True: pass")
    while client.get_iopub_msg(timeout=LIMIT_S)["header"]["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    while True:
        reply = client.get_shell_msg(timeout=LIMIT_S)
        if reply["parent_header"].get("msg_id") == endless:
            break
    interrupted = reply["content"].get("ename")

    manager.restart_kernel()
    client.wait_for_ready(timeout=LIMIT_S)
    again = int(printed(client, CELL))
    print(json.dumps({"first": first, "interrupted": interrupted, "again": again}), flush=True)
    sys.stdin.readline()
    manager.shutdown_kernel()
    print(json.dumps({"lives": manager.is_alive()}))


main()
