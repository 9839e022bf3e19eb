//! Many connections at once: hundreds of processes that start together, and hostile connections to
//! the tenant socket. Neither delays the other tenants.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::wire::{Hello, Role};
use deepres_abi::wish::Wish;
use deepres_e2e::finally::Finally;
use deepres_e2e::prelude::*;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::IntoBytes;

/// Number of processes that start at once.
const PROCESSES: usize = 300;

/// Starts all processes, spread over this many tenants, and asserts that all get a session. `cargo
/// xtask bench storm` measures the waits of the processes.
fn storm(tenants: usize) {
    let (host, _daemon) = Host::measuring().with_daemon();
    let client = c_client("boot");
    // This run creates the simulated GPU's state.
    host.finish(host.command(&client)).success();
    let mut clients: Vec<Process> = (0..PROCESSES)
        .map(|number| {
            let mut command = host.preloaded(&client);
            command.env("DEEPRES_TENANT", format!("storm-{}", number % tenants));
            host.spawn(command)
        })
        .collect();
    for client in &mut clients {
        client.await_json();
    }
    let ps = host.ps();
    let sessions: usize = ps.tenants.iter().map(|tenant| tenant.sessions.len()).sum();
    assert_eq!((sessions, ps.tenants.len()), (PROCESSES, tenants));
    clients.iter_mut().for_each(Process::close_stdin);
    for mut client in clients {
        client.await_end().success();
    }
}

fn hello(name: &str) -> Hello {
    let mut hello = Hello::new(Role::Session);
    let now = clock_gettime(ClockId::Monotonic);
    hello.monotonic_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    hello.pid = std::process::id();
    hello.wishes = Wish { share_ppm: Some(1_000_000), ..Wish::default() }.encode();
    deepres_abi::wire::set_text(&mut hello.tenant, name);
    hello
}

/// Sends hostile input again and again until `is_over`: silence, garbage, half a hello, short
/// sessions, and the names of other users' tenants.
fn annoy(address: &SocketAddrUnix, is_over: &AtomicBool, tries: &AtomicU64) {
    let mut held = Vec::new();
    for number in 0u64.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(connection) = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None) else { continue };
        if connect(&connection, address).is_err() {
            continue;
        }
        let whole = hello(if number % 2 == 0 { "stranger" } else { "a" });
        let whole = whole.as_bytes();
        let garbage: Vec<u8> = (0..whole.len()).map(|at| (at as u64 * number) as u8).collect();
        // The result is ignored, because the daemon may have closed the connection.
        let _ = match number % 5 {
            0 => send(&connection, &garbage, SendFlags::NOSIGNAL),
            1 => send(&connection, &whole[..whole.len() / 2], SendFlags::NOSIGNAL),
            2 => send(&connection, whole, SendFlags::NOSIGNAL)
                .and_then(|_| send(&connection, whole, SendFlags::NOSIGNAL)),
            3 => send(&connection, whole, SendFlags::NOSIGNAL),
            _ => Ok(0),
        };
        tries.fetch_add(1, Ordering::Relaxed);
        // Some connections stay open and silent.
        if number % 50 == 4 {
            held.push(connection);
            held.truncate(100);
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn hundreds_of_processes_of_one_tenant_are_all_served() {
        storm(1);
    }

    #[test]
    fn hundreds_of_tenants_are_all_served() {
        storm(PROCESSES);
    }

    #[test]
    fn strangers_at_the_socket_take_nothing_from_the_tenants() {
        let (host, daemon) = Host::measuring().with_daemon();
        let start = |name: &str, share: &str| {
            let arguments = ["--kernel", "busy_1000us"];
            host.start(
                host.run(&["--name", name, "--share", share], c_client("backlog"), &arguments),
                "ready",
            )
        };
        let _clients = [start("a", "70%"), start("b", "30%")];
        let address = SocketAddrUnix::new(host.tenant_socket()).expect("a short path");
        let (is_over, tries) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| annoy(&address, &is_over, &tries));
            }
            let _finally = Finally(&is_over);
            thread::sleep(Duration::from_millis(500));
            let window = Window::measure(&host, Duration::from_secs(4));
            println!("{} tries", tries.load(Ordering::Relaxed));
            window.assert_shares(&[("a", 70.0), ("b", 30.0)]);
        });
        assert!(tries.load(Ordering::Relaxed) > 100, "they hardly tried");
        assert!(host.ps().daemon_pid == daemon.pid(), "it is the same daemon");
    }
}
