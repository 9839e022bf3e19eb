//! The hook of Ray's workers sets the share of a task before the task's first line. In the quick
//! track, stand-ins take the place of Ray's modules.

use std::fs;
use std::path::PathBuf;

use deepres_e2e::artefacts::repository;
use deepres_e2e::prelude::*;
use deepres_e2e::venv;

/// Ray's module as the hook sees it: a worker that runs a task with a part of a GPU.
const RAY: &str = "
import os
class Context:
    def get_assigned_resources(self): return {'CPU': 1.0, 'GPU': float(os.environ['PART'])}
    def get_actor_id(self): return None
    def get_worker_id(self): return '0123456789abcdef0123456789abcdef'
def get_runtime_context(): return Context()
";
/// Ray's function that tells a worker its GPUs.
const UTILS: &str = "
import os
def set_visible_accelerator_ids():
    os.environ['CUDA_VISIBLE_DEVICES'] = '1'
    return {'CUDA_VISIBLE_DEVICES': None}
";
/// A worker that runs two tasks one after another.
const WORKER: &str = "
import deepres_ray, os, sys
from ray._private import utils
print(sorted(deepres_ray.runtime_env(library='/l.so', DEEPRES_MEMORY='1GiB')['env_vars'].items()))
deepres_ray.set_up()
for part in sys.argv[1:]:
    os.environ['PART'] = part
    told = utils.set_visible_accelerator_ids()
    print(told, *(os.environ.get(name) for name in ('CUDA_VISIBLE_DEVICES', 'DEEPRES_SHARE', 'DEEPRES_TENANT')))
";

/// Returns the folder of the module `deepres_ray`.
fn hook() -> PathBuf {
    repository().join("controller/deploy/ray")
}

#[test]
fn a_worker_sets_the_share_of_its_first_task_when_ray_tells_it_its_gpus() {
    let host = Host::new();
    let modules = host.path().join("modules");
    fs::create_dir_all(modules.join("ray/_private")).unwrap();
    for (file, text) in [("__init__", RAY), ("_private/__init__", ""), ("_private/utils", UTILS)] {
        fs::write(modules.join("ray").join(file).with_extension("py"), text).unwrap();
    }
    let worker = |parts: &[&str]| {
        let mut python = host.command("python3");
        python.args(["-c", WORKER]).args(parts);
        python.env("PYTHONPATH", std::env::join_paths([&modules, &hook()]).unwrap());
        // Python would put compiled modules beside the hook.
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        host.finish(python).success().stdout
    };
    let said = worker(&["0.3", "0.25"]);
    let tenant = "ray-task-0123456789abcdef";
    let expected = [
        "[('DEEPRES_MEMORY', '1GiB'), ('DEEPRES_SOCKET', '/run/deepres/tenant/tenant.sock'), ('LD_PRELOAD', '/l.so')]",
        &format!("{{'CUDA_VISIBLE_DEVICES': None}} 1 30.00% {tenant}"),
        "deepres_ray: the worker keeps its first share, not 25.00%",
        &format!("{{'CUDA_VISIBLE_DEVICES': None}} 1 30.00% {tenant}"),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert!(worker(&["1.0"]).ends_with("{'CUDA_VISIBLE_DEVICES': None} 1 None None\n"), "a whole GPU");
    assert!(worker(&["0.001"]).contains(" 1.00% "), "the least share");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Time within which Ray starts and both workers compute, on a busy machine.
    const STARTED_WITHIN: Duration = Duration::from_secs(120);
    /// Time after which both workers are past their first launches.
    const SETTLED: Duration = Duration::from_millis(700);
    /// Time of the measurement: at least 80 quanta, because a quantum is at most 50 ms.
    const MEASURED: Duration = Duration::from_secs(4);

    /// Returns the tenant of a running worker whose name begins with `kind`.
    fn worker<'a>(ps: &'a Ps, kind: &str) -> Option<&'a Tenant> {
        ps.tenants.iter().find(|tenant| tenant.name.starts_with(kind) && !tenant.sessions.is_empty())
    }

    #[test]
    #[ignore = "deep: installs Ray"]
    fn a_task_and_an_actor_of_ray_have_the_parts_of_the_gpu_that_they_ask_for() {
        const KINDS: [&str; 2] = ["ray-task-", "ray-actor-"];
        let venv = venv::ray().expect("the environment of Ray");
        let (host, _daemon) = Host::measuring().with_daemon();
        let mut python = host.command(venv.python());
        python.arg(script("ray_tasks")).arg(&artefacts().library).arg(host.tenant_socket());
        python.env("PYTHONPATH", hook()).env("PYTHONDONTWRITEBYTECODE", "1");
        // Ray would report its use over the network.
        python.env("RAY_USAGE_STATS_ENABLED", "0");
        let ray = host.spawn(python);
        let both_run = |ps: &Ps| KINDS.iter().all(|kind| worker(ps, kind).is_some());
        let ps = host.await_ps_within(both_run, STARTED_WITHIN);
        let [task, actor] = KINDS.map(|kind| worker(&ps, kind).expect("both run").name.clone());
        for (name, share_ppm) in [(&task, 300_000), (&actor, 700_000)] {
            assert_eq!(host.tenant(name)["asked_share_ppm"], share_ppm, "{name}");
        }
        thread::sleep(SETTLED);
        Window::measure(&host, MEASURED).assert_shares(&[(&task, 30.0), (&actor, 70.0)]);
        ray.finish().success();
        host.await_nothing_held();
    }
}
