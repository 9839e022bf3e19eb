//! A real Jupyter kernel under `deepres run`, started by the kernelspec of docs/notebooks.md.

use std::fs;

use deepres_e2e::artefacts::repository;
use deepres_e2e::prelude::*;
use deepres_e2e::venv;

/// Time limit for a kernel that starts, is interrupted and starts again, on a busy machine.
const TALKED_WITHIN: Duration = Duration::from_secs(120);
/// The folder of the programs in the kernelspec of the page.
const PAGE_PROGRAMS: &str = "/home/ann/venv/bin";
/// The memory limit in the kernelspec of the page.
const PAGE_LIMIT_BYTES: u64 = 8 * GIB;

/// Returns the kernelspec of docs/notebooks.md, for these programs.
fn kernelspec(deepres: &str, python: &str) -> String {
    let page = fs::read_to_string(repository().join("docs/notebooks.md")).expect("a page of the repository");
    let (_, block) = page.split_once("```json\n").expect("the page has a kernelspec");
    let (text, _) = block.split_once("```").expect("the kernelspec ends");
    text.replace(&format!("{PAGE_PROGRAMS}/deepres"), deepres)
        .replace(&format!("{PAGE_PROGRAMS}/python"), python)
}

#[test]
#[ignore = "deep: installs a Jupyter kernel"]
fn a_notebook_is_a_tenant_and_its_kernel_can_be_interrupted_and_restarted() {
    let venv = venv::jupyter().expect("the environment of Jupyter");
    let (host, _daemon) = Host::new().with_daemon();
    let kernels = host.path().join("kernels");
    let specification = kernels.join("deepres/kernel.json");
    fs::create_dir_all(specification.parent().expect("a folder of our own")).expect("a folder of our own");
    let [deepres, python] = [&artefacts().deepres, &venv.python()].map(|path| path.display().to_string());
    let text = kernelspec(&deepres, &python);
    assert!(!text.contains(PAGE_PROGRAMS), "{text}");
    fs::write(&specification, text).expect("a folder of our own");

    let mut notebook = host.command(venv.python());
    notebook.arg(script("notebook")).arg(&kernels).env("HOME", host.path());
    let mut notebook = host.spawn(notebook);
    let said = notebook.await_json_within(TALKED_WITHIN);
    let limit = Value::from(PAGE_LIMIT_BYTES);
    assert_eq!((&said["first"], &said["again"]), (&limit, &limit), "the limit is the whole GPU");
    assert_eq!(said["interrupted"], "KeyboardInterrupt");
    // The tenant of the first kernel stays in the list without a process.
    let tenants = host.ps().tenants.into_iter().filter(|tenant| tenant.keepers > 0);
    let tenants: Vec<Tenant> = tenants.collect();
    assert!(matches!(&tenants[..], [tenant] if tenant.sessions.len() == 1), "{tenants:?}");
    notebook.say("");
    notebook.await_line(|line| line == "{\"lives\": false}");
    host.await_nothing_held();
}
