"""Prints what NVML says of GPU 0 by every version of the calls that nvidia-ml-py has, as one JSON object."""

import json

import pynvml as nvml


def processes(call, handle):
    return sorted(process.pid for process in call(handle))


def used(processes):
    return {str(process.pid): process.usedGpuMemory for process in processes}


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
            "compute": processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
            "compute_v2": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
            "compute_v3": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
            "used": used(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            "used_v2": used(nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
            "used_v3": used(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
            "details": used(details),
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
