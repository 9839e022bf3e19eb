//! PyTorch as PyPI has it: it gets as far with deepres as without, and none of its look-ups goes past it.
//!
//! Gigabytes, so `cargo xtask test --large` alone runs it. Its CUDA libraries ask the driver to prove that it is NVIDIA's, which the
//! simulated one cannot: no GPU work is seen here.

use std::{env, path::PathBuf, time::Duration};

use deepres_e2e::{
    Host, artefacts::target, clients::script, witness::assert_every_look_up_is_answered_with_our_hook,
};
use serde_json::Value;

/// Importing it reads gigabytes, on a machine that others use too.
const CLIENT_LIMIT: Duration = Duration::from_secs(200);
/// Set by `cargo xtask test --large`: the Python environment with PyTorch.
const VENV_VARIABLE: &str = "DEEPRES_VENV_TORCH";

#[test]
#[ignore = "gigabytes: cargo xtask test --large"]
fn torch_gets_as_far_as_without_and_looks_nothing_up_past_the_hooks() {
    let venv = env::var_os(VENV_VARIABLE).map_or_else(|| target().join("venv-torch"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(python.exists(), "{} is not there: run `cargo xtask test --large`", python.display());
    let script = script("torch_client").display().to_string();
    let arguments = [script.as_str()];
    let host = Host::new();
    let mut bare = host.command(&python);
    bare.args(arguments);
    let bare = host.spawn(bare).finish(CLIENT_LIMIT).success().json();
    drop(host);

    let (said, got) = assert_every_look_up_is_answered_with_our_hook(&python, &arguments, CLIENT_LIMIT);
    println!("{bare}\n{} functions looked up and answered with hooks", got.len());
    let said: Value = said.lines().find_map(|line| serde_json::from_str(line).ok()).expect("a JSON line");
    assert_eq!(said, bare, "it gets as far as without deepres");
    assert_eq!(said["work without a GPU"], 4.0, "{said}");
    for symbol in ["cuInit", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemAlloc_v2"] {
        assert!(got.iter().any(|name| name == symbol), "{symbol} is not among {got:?}");
    }
}
