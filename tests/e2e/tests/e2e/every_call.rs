//! Every hook forwards a call exactly. Every error that a function's reference names reaches the
//! client and leaves nothing on the account.

use std::process::Command;

use deepres_abi::driver::ApiId;
use deepres_abi::forwarded;
use deepres_e2e::clients::{every_call, recording_driver};
use deepres_e2e::prelude::*;

/// Fewest answers of a whole run, which makes some thousand calls.
const FEWEST_ANSWERS: usize = 1000;

#[test]
fn every_hook_calls_the_driver_once_with_the_arguments_as_they_came_and_gives_back_its_answer() {
    let (host, _daemon) = Host::new().with_daemon();
    let ps: Value = host.status();
    let uuid = ps["gpus"][0]["uuid"].as_str().expect("a GPU with a UUID").to_owned();
    let hooked = ApiId::ALL.into_iter().filter(|id| forwarded::reason(*id).is_none()).count();
    let on_recorder = |mut command: Command| {
        command
            .arg("exact")
            .env("LD_LIBRARY_PATH", recording_driver())
            .env("STUB_DRIVER_UUID", uuid.trim_start_matches("GPU-").replace('-', ""));
        host.spawn(command)
    };
    let mut bare = on_recorder(host.command(every_call()));
    let said = bare.await_line(|line| line.contains("functions"));
    assert_eq!(said, format!("{hooked} functions, 0 of them hooks"));

    let mut command = host.preloaded(every_call());
    command.env("DEEPRES_TENANT", "exact");
    let mut tenant = on_recorder(command);
    let said = tenant.await_line(|line| line.contains("functions"));
    assert_eq!(said, format!("{hooked} functions, {hooked} of them hooks"));
    assert_eq!(host.ps().tenant("exact").sessions.len(), 1, "hooks worked with a session");
    tenant.finish().success();
    // Hooks also forward calls without a session.
    let mut command = host.preloaded(every_call());
    command.env_remove("DEEPRES_SOCKET").env("DEEPRES_DIR", host.path().join("nowhere"));
    let mut alone = on_recorder(command);
    let said = alone.await_line(|line| line.contains("functions"));
    assert_eq!(said, format!("{hooked} functions, {hooked} of them hooks"));
}

#[test]
fn every_error_that_a_reference_names_reaches_the_client_and_nothing_stays_on_the_account() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut rules = host.command(every_call());
    rules.arg("rules");
    let rules = host.finish(rules).success().stdout;
    let failing = |mut command: Command| {
        command.arg("errors").env("SIMGPU_FAULTS", rules.trim());
        command
    };
    let bare = host.finish(failing(host.command(every_call()))).success().stdout;
    let wrong: Vec<&str> = bare
        .lines()
        .filter(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words.len() == 3 && words[1] != words[2]
        })
        .collect();
    assert!(wrong.is_empty(), "the simulated driver answers what it was told: {wrong:?}");
    assert!(bare.lines().count() > FEWEST_ANSWERS, "{} answers", bare.lines().count());

    let mut command = failing(host.preloaded(every_call()));
    command.env("DEEPRES_TENANT", "unlucky");
    let tenant = host.start(command, "end");
    let ps = host.ps();
    assert_eq!(ps.tenant("unlucky").sessions.len(), 1);
    assert_eq!(ps.tenant("unlucky").memory_bytes, 0, "nothing is charged: {ps:?}");
    let said = tenant.finish().success().stdout;
    let differs = said.lines().zip(bare.lines()).find(|(said, bare)| said != bare);
    assert_eq!(differs, None, "with deepres and without");
    assert_eq!(said.len(), bare.len());
}
