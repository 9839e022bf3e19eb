"""Takes JAX as far as it gets with this machine's driver.

The steps are: import, list devices, work on the GPU, work without a GPU.

Prints one JSON object: for each step its result, or the error's class and first line."""

import json

import jax


def outcome(step):
    try:
        return step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def total(platform):
    with jax.default_device(jax.devices(platform)[0]):
        return float(jax.numpy.ones(4).sum())


def main():
    steps = {
        "version": lambda: jax.__version__,
        "devices": lambda: [str(device) for device in jax.devices("cuda")],
        "work": lambda: total("cuda"),
        "work without a GPU": lambda: total("cpu"),
    }
    print(json.dumps({name: outcome(step) for name, step in steps.items()}), flush=True)


main()
