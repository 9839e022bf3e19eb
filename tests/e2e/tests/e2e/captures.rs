//! Captures while the gate is closed. Captured calls do not wait, and the meter does not charge
//! them. Launches of the captured graph wait, and the meter charges them.

use deepres_e2e::prelude::*;

/// Time for which the test observes that a launch still waits.
const WATCHED: Duration = Duration::from_millis(500);
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
const MODES: u64 = 3;
const KERNELS_IN_GRAPH: u64 = 50;

/// A client that captures and launches on orders, while its other threads launch all the time.
struct Client(Orders);

impl Client {
    fn start(host: &Host) -> Self {
        let command = host.run(&["--name", "capturer"], c_client_by("replays", Way::ProcAddress), &[]);
        Self(Orders::new(host.spawn(command), 1, |order| format!("{{\"order\":{order},")))
    }

    /// Returns the answer to the last order. Asserts that none of the order's calls failed.
    #[track_caller]
    fn answer(&mut self) -> Value {
        let said = self.0.answer();
        let answer: Value = serde_json::from_str(&said).expect("JSON");
        for count in ["failed", "wrong_nodes", "other_failures"] {
            assert_eq!(answer[count], 0, "{said}\n{}", self.0.process.stderr());
        }
        answer
    }

    #[track_caller]
    fn order(&mut self, order: &str) -> Value {
        self.0.say(order);
        self.answer()
    }
}

/// Returns the number of the client's kernels that really ran, and their GPU time, ns.
fn ran(host: &Host, pid: u32) -> (u64, u64) {
    let process = host.record(pid);
    (process.gpus[0].kernels, process.gpus[0].kernel_busy_ns)
}

/// Ends the client's other threads, and waits until the account shows exactly the client's
/// launches. Asserts that the charged GPU time matches the record within a fifth.
#[track_caller]
fn assert_all_is_counted(host: &Host, client: &mut Client, graphs: u64) {
    let pid = host.ps().tenant("capturer").pids()[0];
    let eager = client.order("stop")["launches"].as_u64().expect("a number");
    let (kernels, busy_ns) = ran(host, pid);
    assert_eq!(kernels, eager + graphs * KERNELS_IN_GRAPH, "nothing ran that was only captured");
    host.await_ps_within(
        |ps| {
            let capturer = ps.tenant("capturer");
            (capturer.kernel_launches, capturer.graph_launches) == (eager, graphs)
                && capturer.gpu_ns.abs_diff(busy_ns) <= busy_ns / 5
        },
        SETTLES_WITHIN,
    );
}

#[test]
fn a_paused_tenant_captures_and_launches_its_graphs_once_it_is_resumed() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut client = Client::start(&host);
    client.order("both 1");
    let pid = host.ps().tenant("capturer").pids()[0];
    host.call(&["pause", "capturer"]).success();
    // The work that was launched before the pause finishes.
    thread::sleep(WATCHED);
    let before = ran(&host, pid);
    client.order("capture 5");
    client.0.say("replay 3");
    thread::sleep(WATCHED);
    assert!(!client.0.has_answered(), "a graph's launch waits at the gate");
    assert_eq!(ran(&host, pid), before, "and nothing of it runs");
    assert_eq!(host.ps().tenant("capturer").graph_launches, MODES);
    host.call(&["resume", "capturer"]).success();
    client.answer();
    assert_all_is_counted(&host, &mut client, MODES + 3);
    client.0.process.finish().success();
}

#[test]
fn captures_hold_while_another_tenant_has_the_gpu_and_only_their_launches_wait_and_count() {
    const ROUNDS: u64 = 20;
    let (host, _daemon) = Host::new().with_daemon();
    let arguments = ["--kernel", "busy_5000us"];
    let _other = host.start(host.run(&["--name", "other"], c_client("backlog"), &arguments), "ready");
    let mut client = Client::start(&host);
    for _ in 0..ROUNDS {
        client.order("both 1");
        client.order("capture 1");
    }
    let capturer = host.ps().tenant("capturer").clone();
    assert!(capturer.wait_ns > 0, "its gate was closed again and again: {capturer:?}");
    assert_all_is_counted(&host, &mut client, ROUNDS * MODES);
    client.0.process.finish().success();
}
