"""Takes a framework (torch, tensorflow or jax) as far as it gets with this machine's driver.

The steps are: import, list devices, work on the GPU, work without a GPU.

Prints one JSON object: for each step its result, or the error's class and first line."""

import json
import sys


def torch():
    import torch

    return {
        "version": lambda: torch.__version__,
        "available": torch.cuda.is_available,
        "devices": torch.cuda.device_count,
        "init": torch.cuda.init,
        "work": lambda: float(torch.ones(4, device="cuda").sum()),
        "work without a GPU": lambda: float(torch.ones(4).sum()),
    }


def tensorflow():
    import tensorflow

    def total(device):
        with tensorflow.device(device):
            return float(tensorflow.reduce_sum(tensorflow.ones(4)))

    return {
        "version": lambda: tensorflow.__version__,
        "devices": lambda: [device.name for device in tensorflow.config.list_physical_devices("GPU")],
        "work": lambda: total("/GPU:0"),
        "work without a GPU": lambda: total("/CPU:0"),
    }


def jax():
    import jax

    def total(platform):
        with jax.default_device(jax.devices(platform)[0]):
            return float(jax.numpy.ones(4).sum())

    return {
        "version": lambda: jax.__version__,
        "devices": lambda: [str(device) for device in jax.devices("cuda")],
        "work": lambda: total("cuda"),
        "work without a GPU": lambda: total("cpu"),
    }


def outcome(step):
    try:
        result = step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return "done" if result is None else result


def main():
    steps = {"torch": torch, "tensorflow": tensorflow, "jax": jax}[sys.argv[1]]()
    print(json.dumps({name: outcome(step) for name, step in steps.items()}), flush=True)


main()
