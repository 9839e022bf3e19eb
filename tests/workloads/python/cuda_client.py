"""Uses NVIDIA's own Python packages: cuda.bindings (driver and NVRTC), then cuda.core.

Prints one JSON object with its own counts, and stays until its standard input ends."""

import ctypes
import json
import sys

from cuda.bindings import driver, nvrtc
from cuda.core import Device, DeviceMemoryResource, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
extern "C" __global__ void scale(float *values, float factor) {
    values[blockIdx.x * blockDim.x + threadIdx.x] *= factor;
}
"""
THREADS = 256
BLOCKS = 64
BYTES = THREADS * BLOCKS * ctypes.sizeof(ctypes.c_float)
CHUNK_BYTES = 64 << 20

# The program keeps its memory, so that its parent process sees the memory on the account.
held = []


def checked(answer):
    """Returns the values of a call's answer, or raises if the first one is no success."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values


def compiled(arch):
    program = checked(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"scale.cu", 0, [], []))
    checked(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()]))
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def use_bindings(launches):
    """Creates a context and a stream, copies, and launches `launches` kernels."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    attribute = driver.CUdevice_attribute
    major = checked(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = checked(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    context = checked(driver.cuCtxCreate(None, 0, device))
    module = checked(driver.cuModuleLoadData(compiled(f"sm_{major}{minor}")))
    kernel = checked(driver.cuModuleGetFunction(module, b"scale"))
    stream = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    values = checked(driver.cuMemAlloc(BYTES))
    host = (ctypes.c_float * (THREADS * BLOCKS))(1.0)
    checked(driver.cuMemcpyHtoDAsync(values, ctypes.addressof(host), BYTES, stream))
    arguments = ((values, ctypes.c_float(0.5)), (None, ctypes.c_float))
    for _ in range(launches):
        checked(driver.cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, 0))
    checked(driver.cuMemcpyDtoHAsync(ctypes.addressof(host), values, BYTES, stream))
    checked(driver.cuStreamSynchronize(stream))
    checked(driver.cuMemFree(values))
    checked(driver.cuCtxDestroy(context))


def use_core(launches):
    """Launches `launches` kernels through cuda.core on a pool's memory, then fills the memory."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    kernel = Program(SOURCE, code_type="c++", options=options).compile("cubin").get_kernel("scale")
    pool = DeviceMemoryResource(device)
    values = pool.allocate(BYTES, stream=stream)
    config = LaunchConfig(grid=BLOCKS, block=THREADS)
    for _ in range(launches):
        launch(stream, config, kernel, values, ctypes.c_float(0.5))
    stream.sync()
    values.close(stream)
    stream.sync()
    try:
        while True:
            held.append(pool.allocate(CHUNK_BYTES, stream=stream))
    except Exception as error:
        return {"bytes": len(held) * CHUNK_BYTES, "error": type(error).__name__, "text": str(error)}


def main():
    launches = int(sys.argv[1])
    use_bindings(launches)
    filled = use_core(launches)
    print(json.dumps({"kernel_launches": 2 * launches, "filled": filled}), flush=True)
    sys.stdin.read()


main()
