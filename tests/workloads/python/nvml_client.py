"""Prints NVML's answers for GPU 0, by every version of nvidia-ml-py's calls, as one JSON object."""

import ctypes
import json
from ctypes import POINTER, byref, c_uint, c_uint64

import pynvml as nvml


def processes(call, handle):
    return sorted(process.pid for process in call(handle))


def used(processes):
    return {str(process.pid): process.usedGpuMemory for process in processes}


class Sample(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("at", c_uint64), ("percent", c_uint * 4)]


class Info(ctypes.Structure):
    _fields_ = [("at", c_uint64), ("pid", c_uint), ("percent", c_uint * 6)]


class Infos(ctypes.Structure):
    _fields_ = [("version", c_uint), ("count", c_uint), ("since", c_uint64), ("list", POINTER(Info))]


def asked_twice(kind, ask):
    """Asks without room for a list, then with enough room. Returns code, count and pids."""
    count = c_uint(0)
    code = ask(None, count)
    needed = count.value
    if code != nvml.NVML_ERROR_INSUFFICIENT_SIZE:
        return {"code": code, "count": needed, "pids": []}
    room = (kind * max(needed, 1))()
    assert ask(room, count) == 0
    return {"code": code, "count": needed, "pids": sorted(one.pid for one in room[: count.value])}


def sampled(handle):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    ask = library.nvmlDeviceGetProcessUtilization
    return asked_twice(Sample, lambda room, count: ask(handle, room, byref(count), c_uint64(0)))


def informed(handle):
    library = ctypes.CDLL("libnvidia-ml.so.1")

    def ask(room, count):
        infos = Infos(1 << 24 | ctypes.sizeof(Infos), count.value, 0, room)
        code = library.nvmlDeviceGetProcessesUtilizationInfo(handle, byref(infos))
        count.value = infos.count
        return code

    return asked_twice(Info, ask)


def busy_samples(handle):
    kind, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return [sample.sampleValue.uiVal for sample in samples]


nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
old = nvml.nvmlDeviceGetMemoryInfo(handle)
new = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
details = nvml.nvmlDeviceGetRunningProcessDetailList(
    handle, nvml.nvmlProcessDetailList_v1, nvml.NVML_PROCESS_MODE_COMPUTE
)
print(
    json.dumps(
        {
            "memory": {"total": old.total, "free": old.free, "used": old.used},
            "memory_v2": {"total": new.total, "free": new.free, "used": new.used},
            "busy_percent": nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "busy_samples": busy_samples(handle),
            "accounted": sorted(nvml.nvmlDeviceGetAccountingPids(handle)),
            "compute": processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
            "compute_v2": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
            "compute_v3": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
            "used": used(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            "used_v2": used(nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
            "used_v3": used(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
            "details": used(details),
            "samples": sampled(handle),
            "infos": informed(handle),
            "graphics_v2": processes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v2, handle),
            "graphics_v3": processes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle),
            "mps": processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
            "mps_v2": processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2, handle),
            "mps_v3": processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle),
            "graphics": processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        }
    )
)
nvml.nvmlShutdown()
