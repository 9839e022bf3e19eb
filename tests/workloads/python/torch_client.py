"""Takes PyTorch as far as it gets with this machine's driver.

The steps are: import, list devices, work on the GPU, work without a GPU.

Prints one JSON object: for each step its result, or the error's class and first line."""

import json

import torch


def outcome(step):
    try:
        result = step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return "done" if result is None else result


def main():
    steps = {
        "version": lambda: torch.__version__,
        "available": torch.cuda.is_available,
        "devices": torch.cuda.device_count,
        "init": torch.cuda.init,
        "work": lambda: float(torch.ones(4, device="cuda").sum()),
        "work without a GPU": lambda: float(torch.ones(4).sum()),
    }
    print(json.dumps({name: outcome(step) for name, step in steps.items()}), flush=True)


main()
