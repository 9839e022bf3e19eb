"""Runs a task and an actor of Ray that compute on parts of one GPU, until the input of this script
ends. docs/ray.md explains the hook.

usage: ray_tasks.py LIBRARY SOCKET, the interposer and the daemon's tenant socket."""

import ctypes
import os
import select
import sys
from ctypes import byref

import deepres_ray
import ray

# Time between two looks at the input and at the tasks, s.
LOOK_S = 0.1
# Launches between two waits for the GPU.
LAUNCHES = 32
# The least that Ray accepts, and a little more, bytes. The tasks keep no objects.
OBJECTS_BYTES = 100 << 20
# The simulated GPU knows the kernel's time by its name.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry busy_1000us()
{
	ret;
}
"""


def compute():
    """Keeps the GPU busy."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def must(code):
        if code != 0:
            raise RuntimeError(f"the driver says {code}")

    context, module, kernel = (ctypes.c_void_p() for _ in range(3))
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuModuleLoadData(byref(module), PTX))
    must(cuda.cuModuleGetFunction(byref(kernel), module, b"busy_1000us"))
    while True:
        for _ in range(LAUNCHES):
            must(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None))
        must(cuda.cuCtxSynchronize())


@ray.remote(num_gpus=0.3)
def task():
    compute()


@ray.remote(num_gpus=0.7)
class Actor:
    def compute(self):
        compute()


def main():
    library, socket = sys.argv[1:]
    ray.init(
        num_cpus=2,
        num_gpus=1,
        include_dashboard=False,
        object_store_memory=OBJECTS_BYTES,
        runtime_env=deepres_ray.runtime_env(library=library, socket=socket),
        _temp_dir=os.getcwd(),
    )
    actor = Actor.remote()
    running = [task.remote(), actor.compute.remote()]
    while not select.select([sys.stdin], [], [], 0)[0]:
        ended, _ = ray.wait(running, timeout=LOOK_S)
        # Raises the error of a task that failed.
        ray.get(ended)
    ray.shutdown()


main()
