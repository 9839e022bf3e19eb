"""Starts children by each of multiprocessing's methods.

The parent initialises the driver between the first round and the second. Prints the driver's answers
in each child and in the parent."""

import ctypes
import multiprocessing


def init(_):
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    return driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value


if __name__ == "__main__":
    for moment in ("before", "after"):
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                print(moment, method, sorted(set(pool.map(init, range(4)))), flush=True)
        print(moment, "parent", init(None), flush=True)
