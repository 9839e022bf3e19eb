//! A real Jupyter kernel under `deepres run`, started by a kernelspec as docs/notebooks.md has it.

use std::fs;

use deepres_e2e::prelude::*;
use deepres_e2e::venv;

/// Time limit for a kernel that starts, is interrupted and starts again, on a busy machine.
const TALKED_WITHIN: Duration = Duration::from_secs(120);

#[test]
#[ignore = "deep: installs a Jupyter kernel"]
fn a_notebook_is_a_tenant_and_its_kernel_can_be_interrupted_and_restarted() {
    let venv = venv::jupyter().expect("the environment of Jupyter");
    let (host, _daemon) = Host::new().with_daemon();
    let kernels = host.path().join("kernels");
    let specification = kernels.join("deepres/kernel.json");
    fs::create_dir_all(specification.parent().expect("a folder of our own")).expect("a folder of our own");
    let run = ["run", "--name", "notebook", "--memory", "1GiB", "--"].map(str::to_owned);
    let kernel = ["-m", "ipykernel_launcher", "-f", "{connection_file}"].map(str::to_owned);
    let programs = [artefacts().deepres.display().to_string(), venv.python().display().to_string()];
    let argv = [&programs[..1], &run, &programs[1..], &kernel].concat();
    let text = json!({
        "argv": argv, "display_name": "deepres", "language": "python", "interrupt_mode": "message"
    });
    fs::write(&specification, text.to_string()).expect("a folder of our own");

    let mut notebook = host.command(venv.python());
    notebook.arg(script("notebook")).arg(&kernels).env("HOME", host.path());
    let mut notebook = host.spawn(notebook);
    let said = notebook.await_json_within(TALKED_WITHIN);
    assert_eq!((&said["first"], &said["again"]), (&GIB.into(), &GIB.into()), "the limit is the whole GPU");
    assert_eq!(said["interrupted"], "KeyboardInterrupt");
    let tenant = host.ps().tenant("notebook").clone();
    assert_eq!((tenant.sessions.len(), tenant.keepers), (1, 1), "{tenant:?}");
    notebook.say("");
    notebook.await_line(|line| line == "{\"lives\": false}");
    host.await_nothing_held();
}
