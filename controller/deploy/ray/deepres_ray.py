"""Gives each task and actor of Ray its part of the GPU: `num_gpus=0.3` is a share of 30 %.

    import deepres_ray, ray
    ray.init(runtime_env=deepres_ray.runtime_env())

Ray starts a worker process for a task before it knows the task. So the hook of the worker waits until
Ray tells the worker its GPUs, which is before the task's first line. docs/ray.md explains the use.
"""

import os

LIBRARY = "/usr/lib/deepres/libdeepres.so"
SOCKET = "/run/deepres/tenant/tenant.sock"
DIGITS_SHOWN = 16


def runtime_env(library=LIBRARY, socket=SOCKET, **variables):
    """Returns the runtime environment for `ray.init` or for single tasks.

    `variables` are further variables of the tasks, for example `DEEPRES_MEMORY="8GiB"`.
    """
    env_vars = {"LD_PRELOAD": library, "DEEPRES_SOCKET": socket, **variables}
    return {"env_vars": env_vars, "worker_process_setup_hook": "deepres_ray.set_up"}


def set_up():
    """Makes this worker process set its share when Ray tells the worker its GPUs."""
    from ray._private import utils

    tell = getattr(utils, "set_visible_accelerator_ids", None)
    if tell is None:
        raise RuntimeError("deepres_ray does not know this release of Ray; see docs/ray.md")

    def tell_and_share():
        told = tell()
        set_share()
        return told

    utils.set_visible_accelerator_ids = tell_and_share


def set_share():
    """Sets the share of the task or actor that this worker runs. A whole GPU has no other task."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_assigned_resources().get("GPU", 0)
    if not 0 < gpus < 1:
        return
    kind = "actor" if context.get_actor_id() else "task"
    variables = share_variables(gpus, f"ray-{kind}-{context.get_worker_id()[:DIGITS_SHOWN]}")
    if any(os.environ.get(name, value) != value for name, value in variables.items()):
        # The driver of a used worker has the share of the first task.
        print(f"deepres_ray: the worker keeps its first share, not {variables['DEEPRES_SHARE']}")
        return
    os.environ.update(variables)


def share_variables(gpus, name):
    """Returns the variables of a tenant of this name with this part of a GPU."""
    # Ray counts in ten-thousandths.
    return {"DEEPRES_SHARE": f"{max(gpus * 100, 1):.2f}%", "DEEPRES_TENANT": name}
