"""Runs the lines of its input as Python expressions. Answers each with its number and its value.

The expressions use the functions below, for tests of unusual kinds of memory. Most functions return
the driver's code."""

import ctypes
import struct
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")

DEVICE, HOST, HOST_NUMA = 1, 2, 3
PINNED, MANAGED = 1, 2
FILE_DESCRIPTOR = 1
SPARSE, DEFERRED = 0x40, 0x80
ARRAY, MIPMAPPED = 0, 1
FLOAT = 0x20
kept = {}


def must(code):
    if code != 0:
        raise RuntimeError(f"the driver says {code}")


def start():
    context = c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuCtxCreate_v2(byref(context), 0, 0))
    return 0


def context():
    """Returns the current context."""
    current = c_void_p()
    must(cuda.cuCtxGetCurrent(byref(current)))
    return current


def pool(name, location=DEVICE, place=0, kind=PINNED, handles=0):
    """Creates a pool and keeps it under a name. Returns the driver's code."""
    properties = struct.pack("iiiiQQ56x", kind, handles, location, place, 0, 0)
    kept[name] = c_void_p()
    return cuda.cuMemPoolCreate(byref(kept[name]), properties)


def driver_pool(name, location, place=0, kind=PINNED, is_present=False):
    """Keeps the driver's own pool of a location under a name. Returns the driver's code."""
    kept[name] = c_void_p()
    get = cuda.cuMemGetMemPool if is_present else cuda.cuMemGetDefaultMemPool
    return get(byref(kept[name]), struct.pack("ii", location, place), kind)


def take(name, of, size):
    """Allocates from a pool."""
    kept[name] = c_uint64()
    code = cuda.cuMemAllocFromPoolAsync(byref(kept[name]), c_size_t(size), kept[of], None)
    must(cuda.cuCtxSynchronize())
    return code


def give(name):
    """Frees memory of a pool."""
    code = cuda.cuMemFreeAsync(kept[name], None)
    must(cuda.cuCtxSynchronize())
    return code


def end_pool(name):
    return cuda.cuMemPoolDestroy(kept[name])


def in_a_context_that_ends(call):
    """Calls in a new context and destroys it. The previous context is current again afterwards."""
    own = c_void_p()
    must(cuda.cuCtxCreate_v2(byref(own), 0, 0))
    code = call()
    must(cuda.cuCtxDestroy_v2(own))
    return code


def export_pool(name):
    """Returns a descriptor of a pool."""
    descriptor = c_int()
    must(cuda.cuMemPoolExportToShareableHandle(byref(descriptor), kept[name], FILE_DESCRIPTOR, c_uint64(0)))
    return descriptor.value


def export_pointer(name):
    """Returns the data by which another process opens memory of a pool."""
    data = ctypes.create_string_buffer(64)
    must(cuda.cuMemPoolExportPointer(data, kept[name]))
    return data.raw.hex()


def import_pool(name, pid, descriptor):
    kept[name] = c_void_p()
    with open(f"/proc/{pid}/fd/{descriptor}", "r+b") as file:
        return cuda.cuMemPoolImportFromShareableHandle(byref(kept[name]), c_void_p(file.fileno()), FILE_DESCRIPTOR, c_uint64(0))


def import_pointer(name, of, data):
    kept[name] = c_uint64()
    return cuda.cuMemPoolImportPointer(byref(kept[name]), kept[of], bytes.fromhex(data))


def write(name, value):
    return cuda.cuMemsetD32_v2(kept[name], value, c_size_t(1)) or cuda.cuCtxSynchronize()


def read(name):
    value = c_int()
    must(cuda.cuMemcpyDtoH_v2(byref(value), kept[name], c_size_t(4)))
    return value.value


def physical(name, size):
    """Creates physical memory that can be exported."""
    properties = struct.pack("iiiiQ8x", PINNED, FILE_DESCRIPTOR, DEVICE, 0, 0)
    kept[name] = c_uint64()
    return cuda.cuMemCreate(byref(kept[name]), c_size_t(size), properties, c_uint64(0))


def export_physical(name):
    descriptor = c_int()
    must(cuda.cuMemExportToShareableHandle(byref(descriptor), kept[name], FILE_DESCRIPTOR, c_uint64(0)))
    return descriptor.value


def linear(name, size):
    kept[name] = c_uint64()
    return cuda.cuMemAlloc_v2(byref(kept[name]), c_size_t(size))


PREFERRED, PREFETCHED = 2, 4


def place(name, size, attribute):
    """Returns the GPU to which managed memory belongs or was brought last; negative: no GPU."""
    value = c_int()
    must(cuda.cuMemRangeGetAttribute(byref(value), c_size_t(4), attribute, kept[name], c_size_t(size)))
    return value.value


def on_a_dead_context(call):
    """Calls while the current context is one that another thread has destroyed."""
    import threading

    before, dead = context(), c_void_p()
    must(cuda.cuCtxCreate_v2(byref(dead), 0, 0))
    thread = threading.Thread(target=lambda: must(cuda.cuCtxDestroy_v2(dead)))
    thread.start()
    thread.join()
    code = call()
    must(cuda.cuCtxSetCurrent(before))
    return code


def release(name):
    return cuda.cuMemRelease(kept[name])


def array(name, flags, width=1024, height=1024):
    kept[name] = c_void_p()
    return cuda.cuArray3DCreate_v2(byref(kept[name]), struct.pack("QQQIII4x", width, height, 0, FLOAT, 1, flags))


def mipmapped(name, flags, levels, width=1024, height=1024):
    kept[name] = c_void_p()
    description = struct.pack("QQQIII4x", width, height, 0, FLOAT, 1, flags)
    return cuda.cuMipmappedArrayCreate(byref(kept[name]), description, levels)


def box(resource, name, x, width, handle=None):
    """Maps physical memory into columns of an array's first level, or unmaps those columns."""
    operation = 2 if handle is None else 1
    part = struct.pack("8I", 0, 0, x, 0, 0, width, 1024, 1)
    info = struct.pack("I4xQI4x", resource, kept[name].value, 0) + part
    info += struct.pack("IIQQII8x", operation, 0, 0 if handle is None else kept[handle].value, 0, 1, 0)
    return cuda.cuMemMapArrayAsync(info, 1, None)


def requirements(name):
    needs = (c_size_t * 4)()
    must(cuda.cuArrayGetMemoryRequirements(needs, kept[name], 0))
    return needs[0]


def external(name, pid, descriptor, size):
    """Imports memory that another process has exported, as external memory."""
    import os

    kept[name] = c_void_p()
    number = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    return cuda.cuImportExternalMemory(byref(kept[name]), struct.pack("I4xi12xQI64x4x", 1, number, size, 0))


def buffer(name, of, offset, size):
    kept[name] = c_uint64()
    return cuda.cuExternalMemoryGetMappedBuffer(byref(kept[name]), kept[of], struct.pack("QQI64x4x", offset, size, 0))


def picture(name, of, levels, width=256, height=256):
    kept[name] = c_void_p()
    description = struct.pack("QQQQIII4xI64x4x", 0, width, height, 0, FLOAT, 1, 0, levels)
    return cuda.cuExternalMemoryGetMappedMipmappedArray(byref(kept[name]), kept[of], description)


for number, line in enumerate(sys.stdin):
    print(number, eval(line), flush=True)
