"""Prints what NVML says of GPU 0 by every version of the calls that nvidia-ml-py has, as one JSON object."""

import json

import pynvml as nvml


def processes(call, handle):
    return sorted(process.pid for process in call(handle))


nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
old = nvml.nvmlDeviceGetMemoryInfo(handle)
new = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
print(
    json.dumps(
        {
            "memory": {"total": old.total, "free": old.free, "used": old.used},
            "memory_v2": {"total": new.total, "free": new.free, "used": new.used},
            "busy_percent": nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "compute": processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
            "compute_v2": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
            "compute_v3": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
            "graphics": processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        }
    )
)
nvml.nvmlShutdown()
