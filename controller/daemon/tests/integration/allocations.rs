//! Allocations of a node's agent: the daemon's record binds the processes with a token.

use deepres_abi::grant::FailMode;
use deepres_abi::wire::{self, Refusal, RefusalKind, Role};
use deepres_daemon_harness::{Daemon, Tenant, hello, say};
use deepres_model::admin::client::ClientError;
use deepres_model::admin::{Reply, Request};
use deepres_model::allocation::{Allocation, PodContainer, Token};
use deepres_model::config::Config;
use deepres_model::wish::Wish;
use zerocopy::IntoBytes;

const MIB: u64 = 1 << 20;

fn allocation(daemon: &Daemon, gpu: usize) -> Allocation {
    Allocation {
        token: Token::of([0x5a; 16]),
        share_ppm: 300_000,
        memory_bytes: 300 * MIB,
        gpus: vec![daemon.gpus[gpu].uuid_text.clone()],
        holder: Some(PodContainer {
            namespace: "vision".to_owned(),
            pod: "train-0".to_owned(),
            container: "main".to_owned(),
        }),
    }
}

fn allocate(daemon: &Daemon, allocation: &Allocation) -> Result<Reply, ClientError> {
    daemon.client().ask(&Request::Allocate { allocation: Box::new(allocation.clone()) })
}

fn tokens(daemon: &Daemon) -> usize {
    match daemon.client().ask(&Request::Allocations).unwrap() {
        Reply::Allocations { tokens, .. } => tokens.len(),
        other => panic!("{other:?}"),
    }
}

/// Connects as a process with this token that sees these GPUs and asks for 99 % and much memory.
fn connect(daemon: &Daemon, token: &Token, gpus: &[usize]) -> Result<Tenant, (u32, String)> {
    let uuids: Vec<_> = gpus.iter().map(|gpu| daemon.gpus[*gpu].uuid).collect();
    let mut hello = hello(Role::Session, token.as_str(), &uuids);
    let wish = Wish { share_ppm: Some(990_000), memory_bytes: Some(900 * MIB), ..Wish::default() };
    hello.wishes = wish.encode();
    Tenant::connect(&daemon.directory.tenant_socket(), &hello)
}

#[test]
fn a_process_with_a_token_has_the_share_and_the_memory_on_record() {
    let daemon = Daemon::start(2, Config::default());
    let allocation = allocation(&daemon, 1);
    assert_eq!(allocate(&daemon, &allocation).unwrap(), Reply::Allocated);
    let _one = connect(&daemon, &allocation.token, &[1]).unwrap();
    let _other = connect(&daemon, &allocation.token, &[1]).unwrap();
    let status = daemon.status();
    let [tenant] = &status.tenants[..] else { panic!("one tenant: {:?}", status.tenants) };
    assert_eq!((tenant.name.as_str(), tenant.sessions.len()), ("vision/train-0/main", 2));
    assert_eq!((tenant.asked_share_ppm, tenant.memory_limit_bytes), (Some(300_000), Some(300 * MIB)));
    assert_eq!((tenant.namespace.as_deref(), tenant.pod.as_deref()), (Some("vision"), Some("train-0")));
    let text = serde_json::to_string(&status).unwrap();
    assert!(!text.contains("5a5a"), "the status has no token: {text}");
}

#[test]
fn a_token_holds_over_restarts_until_the_agent_ends_the_allocation() {
    let daemon = Daemon::start(1, Config::default());
    let allocation = allocation(&daemon, 0);
    allocate(&daemon, &allocation).unwrap();
    let daemon = daemon.restart();
    assert_eq!(tokens(&daemon), 1);
    drop(connect(&daemon, &allocation.token, &[0]).unwrap());
    for _ in 0..2 {
        let released = daemon.client().ask(&Request::Release { token: allocation.token.clone() });
        assert_eq!(released.unwrap(), Reply::Released);
    }
    let daemon = daemon.restart();
    assert_eq!(tokens(&daemon), 0);
    let (kind, reason) = connect(&daemon, &allocation.token, &[0]).map(drop).unwrap_err();
    assert_eq!(kind, RefusalKind::Stopping as u32, "the agent may tell the daemon in a moment");
    assert!(reason.contains("does not know the allocation"), "{reason}");
}

#[test]
fn the_launches_of_a_refused_process_fail() {
    let daemon = Daemon::start(2, Config::default());
    let allocation = allocation(&daemon, 0);
    allocate(&daemon, &allocation).unwrap();
    for (token, gpus, word) in [
        (Token::of([1; 16]), &[0][..], "does not know"),
        (allocation.token, &[0, 1], "GPU 1, which its allocation does not have"),
    ] {
        let uuids: Vec<_> = gpus.iter().map(|gpu: &usize| daemon.gpus[*gpu].uuid).collect();
        let hello = hello(Role::Session, token.as_str(), &uuids);
        let (_, answer, _) = say(&daemon.directory.tenant_socket(), hello.as_bytes());
        let refusal = wire::decode::<Refusal>(&answer).unwrap();
        let reason = wire::text(&refusal.reason).unwrap();
        assert!(reason.contains(word), "{reason}");
        assert_eq!(refusal.fallback().fail_mode, FailMode::Closed, "its variables may claim any share");
    }
    assert!(daemon.status().tenants.is_empty());
}

#[test]
fn an_impossible_allocation_is_refused_and_not_on_record() {
    let daemon = Daemon::start(1, Config::default());
    let good = allocation(&daemon, 0);
    for (bad, word) in [
        (Allocation { share_ppm: 0, ..good.clone() }, "share"),
        (Allocation { memory_bytes: 0, ..good.clone() }, "memory"),
        (Allocation { gpus: Vec::new(), ..good.clone() }, "names no GPU"),
        (Allocation { gpus: vec!["GPU-x".to_owned()], ..good }, "does not manage the GPU GPU-x"),
    ] {
        let said = allocate(&daemon, &bad).unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(tokens(&daemon), 0);
}

#[test]
fn whole_gpus_are_placed_by_the_topology_among_those_that_are_free() {
    let daemon = Daemon::start(4, Config::default());
    let uuids = |gpus: &[usize]| -> Vec<String> {
        gpus.iter().map(|gpu| daemon.gpus[*gpu].uuid_text.clone()).collect()
    };
    let place = |gpus, among: &[usize]| daemon.client().ask(&Request::Place { gpus, among: uuids(among) });
    match place(2, &[1, 3]).unwrap() {
        Reply::Placed { gpus, why } => assert!(gpus == uuids(&[1, 3]) && !why.is_empty(), "{gpus:?}: {why}"),
        other => panic!("{other:?}"),
    }
    for (gpus, among) in [(3, &[1, 3][..]), (0, &[0]), (1, &[])] {
        assert!(matches!(place(gpus, among), Err(ClientError::Refused(_))), "{gpus} of {among:?}");
    }
}
