"""Takes TensorFlow as far as it gets with this machine's driver.

The steps are: import, list devices, work on the GPU, work without a GPU.

Prints one JSON object: for each step its result, or the error's class and first line."""

import json

import tensorflow


def outcome(step):
    try:
        return step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def total(device):
    with tensorflow.device(device):
        return float(tensorflow.reduce_sum(tensorflow.ones(4)))


def main():
    steps = {
        "version": lambda: tensorflow.__version__,
        "devices": lambda: [device.name for device in tensorflow.config.list_physical_devices("GPU")],
        "work": lambda: total("/GPU:0"),
        "work without a GPU": lambda: total("/CPU:0"),
    }
    print(json.dumps({name: outcome(step) for name, step in steps.items()}), flush=True)


main()
