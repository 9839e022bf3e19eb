//! Runs the program that checks a driver (tests/conformance). The simulated driver must pass all
//! checks, with and without deepres in between.

use std::fs;
use std::process::Command;

use deepres_e2e::artefacts::repository;
use deepres_e2e::clients::conformance;
use deepres_e2e::prelude::*;

use crate::mps::{by_mps, mps};

/// Time limit. The program starts a hundred processes with a context each, on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

fn host() -> Host {
    let config = repository().join("tests/conformance/simgpu.toml");
    Host::new().simgpu(&fs::read_to_string(config).expect("part of the repository"))
}

#[track_caller]
fn assert_every_check_agrees(host: &Host, command: Command) {
    let Finished { code, stdout, stderr, .. } = host.spawn(command).finish_within(WITHIN);
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    assert!(stdout.contains(" agree, 0 differ, 0 absent, in "), "{stdout}\n{stderr}");
}

#[test]
fn the_simulated_driver_does_what_the_conformance_program_expects_of_a_driver() {
    let host = host();
    assert_every_check_agrees(&host, host.command(conformance()));
}

#[test]
fn nvml_lists_the_program_as_a_client_of_mps_where_it_is_one() {
    let host = host();
    let _mps = mps(&host);
    let mut command = by_mps(&host, host.command(conformance()));
    command.arg("mps/");
    assert_every_check_agrees(&host, command);
}

#[test]
fn with_deepres_in_between_the_driver_does_the_same() {
    let (host, _daemon) = host().with_daemon();
    assert_every_check_agrees(&host, host.run(&["--name", "asked"], conformance(), &[]));
}

#[test]
fn with_the_library_preloaded_and_no_daemon_the_driver_does_the_same() {
    let host = host();
    assert_every_check_agrees(&host, host.preloaded(conformance()));
}

#[test]
fn a_driver_that_calls_its_own_exports_holds_no_hook_up() {
    // A driver library that is not linked to its own symbols calls the hooks in this way.
    let (host, _daemon) = host().with_daemon();
    let mut command = host.run(&["--name", "asked"], conformance(), &[]);
    command.env("SIMGPU_FAULTS", "reenter:*");
    assert_every_check_agrees(&host, command);
}
