//! The daemon learns a tenant's iteration from the tenant's launches, and searches plans for
//! tenants that run at once (`deepres plan`).

use deepres_e2e::prelude::*;

use crate::mps::{by_mps, mps};

/// A program that repeats four launches on two streams. The third launch follows the second one on
/// the other stream. The stream of the first launch then waits for all.
const REPEATS: [&str; 9] = [
    "--streams",
    "2",
    "busy_200us",
    "busy_1000us",
    "after:1",
    "busy_500us",
    "busy_200us",
    "sync",
    "wait:2000",
];
/// A program that repeats two launches on one stream.
const ONE_STREAM: [&str; 4] = ["busy_200us", "busy_1000us", "sync", "wait:2000"];
/// A GPU of 10 SMs, each of which runs one block at once.
const NARROW: &str = "sm_count = 10\nblocks_per_sm = 1\nlaunch_overhead_ns = 0\n\
                      kernel = [{ name = \"busy_200us\", ns = 200000 }]\n";
/// A program whose kernels use 2 and 8 SMs by turns, five of each. The first kernel uses 3 SMs. If
/// two such programs run in step, their wide kernels meet.
const BY_TURNS: [&str; 25] = [
    "blocks:3",
    "busy_200us",
    "blocks:2",
    "busy_200usx5",
    "blocks:8",
    "busy_200usx5",
    "blocks:2",
    "busy_200usx5",
    "blocks:8",
    "busy_200usx5",
    "blocks:2",
    "busy_200usx5",
    "blocks:8",
    "busy_200usx5",
    "blocks:2",
    "busy_200usx5",
    "blocks:8",
    "busy_200usx5",
    "blocks:2",
    "busy_200usx5",
    "blocks:8",
    "busy_200usx5",
    "sync",
    // Two programs of 10 ms that pause so long have a pace below 80 % of the GPU together, so they
    // run at once. Only then do they follow a plan.
    "sleep:20000",
    "sync",
];
/// The time within which a plan is judged. A stint of two programs takes up to 3 s.
const JUDGED_WITHIN: Duration = Duration::from_secs(180);
/// The longest recording of a test, ms. The program repeats itself every 4 ms.
const RECORDED_MS: &str = "1000";

fn learn(host: &Host, tenant: &str) -> String {
    host.shows(&["plan", "learn", tenant, "--ms", RECORDED_MS])
}

/// Lets the daemon learn a tenant again and again, until the meter has timed nine of ten kernels
/// alone. The daemon then searches a plan.
fn learn_times(host: &Host, tenant: &str) {
    eventually_within("the times are known", JUDGED_WITHIN, || {
        learn(host, tenant);
        let iteration = host.json(&["plan", "show", tenant, "--json"])["iteration"].clone();
        let kernels = iteration["kernels"].as_array().expect("a list").len() as u64;
        10 * number(&iteration, "unknown_times") <= kernels
    });
}

/// Returns the first plan for a tenant.
fn plan_of(host: &Host, tenant: &str) -> Value {
    host.json(&["plan", "show", tenant, "--json"])["plans"][0].clone()
}

#[test]
fn the_daemon_learns_the_iteration_of_a_program_that_repeats_itself() {
    let (host, mut daemon) = Host::new().with_daemon();
    host.call(&["plan", "learn", "t"]).refused("`t`");
    let _job = host.start(host.run(&["--name", "t"], c_client("pace"), &REPEATS), "ready");
    let before = host.json(&["plan", "show", "t", "--json"]);
    assert!(before["iteration"].is_null(), "{before}");
    assert!(before["why_unknown"].as_str().is_some_and(|why| why.contains("plan learn t")), "{before}");
    // The second time, the library has recorded before.
    for _ in 0..2 {
        let said = learn(&host, "t");
        assert!(said.contains("has 4 kernels"), "{said}");
    }
    let known = host.json(&["plan", "show", "t", "--json"]);
    let iteration = &known["iteration"];
    let kernels = iteration["kernels"].as_array().expect("a list");
    let of = |key: &str| kernels.iter().map(|kernel| kernel[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["busy_200us", "busy_1000us", "busy_500us", "busy_200us"], "{known}");
    assert_eq!(of("stream"), [json!(0), json!(1), json!(0), json!(1)]);
    assert_eq!(of("joins"), [json!(false), json!(false), json!(true), json!(false)]);
    assert_eq!(iteration["unknown_widths"], 0, "{known}");
    // The meter can know only a bound of the launch that follows a wait for the other stream.
    let ns = |place: usize| number(&kernels[place], "duration_ns");
    assert!(number(iteration, "unknown_times") <= 1 && ns(0) < ns(1), "{known}");
    assert!(kernels.iter().all(|kernel| kernel["width_percent"].as_f64().is_some_and(|width| width < 5.0)));
    assert!(number(&kernels[0], "idle_ns") > 0 && number(iteration, "period_ns") > 2_000_000, "{known}");
    assert!(known["plans"].as_array().is_some_and(Vec::is_empty), "nobody runs beside it: {known}");
    host.call(&["plan", "on", "t"]).refused("no tenants under MPS that run beside `t`");
    host.call(&["plan", "off", "t"]).refused("`t` follows no plan");
    let shown = host.shows(&["plan", "show", "t"]);
    assert!(shown.contains("(after all before it)") && shown.contains("busy_500us"), "{shown}");

    // The next daemon knows the iteration, although no plan is on.
    daemon.kill();
    let _next = host.daemon();
    let after = host.json(&["plan", "show", "t", "--json"]);
    assert_eq!(after["iteration"], *iteration, "{after}");
}

#[test]
#[ignore = "deep: takes long"]
fn tenants_under_mps_get_a_plan_searched_and_explained() {
    let (host, _daemon) = Host::new().with_daemon();
    let _mps = mps(&host);
    let jobs = [("a", "40%"), ("b", "60%")];
    let _jobs = jobs.map(|(name, part)| {
        let command = host.run(&["--name", name, "--sm", part], c_client("pace"), &ONE_STREAM);
        host.start(by_mps(&host, command), "ready")
    });
    learn(&host, "a");
    let alone = host.json(&["plan", "show", "a", "--json"]);
    assert!(alone["plans"].as_array().is_some_and(Vec::is_empty), "b is not known: {alone}");
    learn(&host, "b");
    let found = || plan_of(&host, "a");
    let found = await_value_within(found, |found| found["plan"].is_object(), COMMAND_LIMIT);
    assert_eq!(found["tenants"], json!(["a", "b"]), "{found}");
    let plan = &found["plan"];
    assert_eq!(plan["installed"], json!(false), "{found}");
    assert!(number(plan, "bound_ns") <= number(plan, "unplanned_ns"), "{found}");
    assert!(number(plan, "unplanned_ns") <= number(plan, "sequential_ns"), "{found}");
    let explained = host.shows(&["explain", "b"]);
    assert!(explained.contains("plan       gpu 0, a and b:"), "{explained}");
    assert_eq!(host.json(&["explain", "b", "--json"])["plans"][0]["tenants"], json!(["a", "b"]));
}

#[test]
#[ignore = "deep: takes long"]
fn tenants_follow_a_plan_across_the_death_of_the_daemon_until_one_departs() {
    let (host, mut daemon) = Host::new().simgpu(NARROW).with_daemon();
    let _mps = mps(&host);
    let start = |name: &str| {
        let command = host.run(&["--name", name, "--sm", "90%"], c_client("pace"), &BY_TURNS);
        host.start(by_mps(&host, command), "ready")
    };
    let mut a = start("a");
    learn_times(&host, "a");
    // Beside `a`, kernels of `b` would take longer.
    host.shows(&["pause", "a"]);
    let _b = start("b");
    learn_times(&host, "b");
    host.shows(&["resume", "a"]);
    let plan = || plan_of(&host, "a");
    let found = await_value_within(plan, |found| found["plan"].is_object(), COMMAND_LIMIT);
    assert_eq!((&found["plan"]["pays"], &found["deployment"]), (&json!(true), &Value::Null), "{found}");
    let said = host.shows(&["plan", "on", "a"]);
    assert!(said.contains("plan       gpu 0, a and b:") && said.contains("followed   on trial"), "{said}");
    let follows = |found: &Value| found["deployment"]["follows"] == true;
    await_value_within(plan, follows, JUDGED_WITHIN);
    let launches = || {
        let tenants = host.status()["tenants"].clone();
        let of = |tenant: usize| number(&tenants[tenant]["gpus"][0], "kernel_launches");
        [of(0), of(1)]
    };
    let go_on = || {
        let before = launches();
        eventually("both go on", || launches().iter().zip(before).all(|(now, before)| *now > before + 100));
    };
    go_on();

    daemon.kill();
    let _next = host.daemon();
    let kept = await_value_within(plan, follows, JUDGED_WITHIN);
    assert_eq!(kept["plan"]["cuts"], found["plan"]["cuts"], "the plan of before");
    assert_eq!(kept["plan"]["installed"], true, "{kept}");
    go_on();

    a.signal(Signal::USR1);
    go_on();
    let dropped = |found: &Value| found["deployment"]["stage"] == "dropped";
    let dropped = await_value_within(plan, dropped, JUDGED_WITHIN);
    let why = dropped["deployment"]["why"].as_str().expect("a reason");
    assert!(why.contains("`a` does not repeat the iteration"), "{dropped}");
    assert_eq!(
        (&dropped["plan"]["installed"], &dropped["deployment"]["follows"]),
        (&json!(false), &json!(false))
    );
    assert!(host.shows(&["explain", "b"]).contains("followed   dropped: `a`"));
    go_on();
    host.shows(&["plan", "off", "b"]);

    // The keys of kernels hold for the life of a process.
    a.terminate();
    let _a = start("a");
    let is_refused = || host.call(&["plan", "on", "b"]).stderr.contains("`deepres plan learn a`");
    eventually("the daemon wants to learn the new process", is_refused);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;
    use deepres_e2e::artefacts::torch;

    /// A GPU of 10 SMs, each of which runs one block at once. Each layer of the network takes as
    /// long. A slow host launches a layer in 0.2 ms, and a plan cannot speed up the host.
    const SMALL: &str = "sm_count = 10\nblocks_per_sm = 1\nlaunch_overhead_ns = 0\n\
                         kernel = [{ name = \"standin_*\", ns = 400000 }]\n";
    /// Time limit of a client's start. PyTorch's import takes seconds.
    const STARTS_WITHIN: Duration = Duration::from_secs(120);
    /// The time between two looks at the trial.
    const LOOK_EVERY: Duration = Duration::from_secs(1);
    /// The greatest difference between the measured and the predicted speed with the plan, as a
    /// part of the predicted speed. This bar alone allows a plan to lose most of a small gain: if
    /// the prediction is 1.06, a measured speed of 1.01 passes.
    const ALLOWED: f64 = 0.05;
    /// The least measured gain, as a part of the predicted gain. For a predicted gain of less than
    /// a ninth, this bar is the higher one: g / 2 > 0.95 (1 + g) - 1. For a larger gain, `ALLOWED`
    /// is the higher one. Only `ALLOWED` bounds the measured speed from above. The trial measures the
    /// gain only up to its noise, so the test compares the end of the 95 % confidence interval.
    const LEAST_GAIN: f64 = 0.5;

    #[test]
    #[ignore = "deep: takes long"]
    fn two_pytorch_servers_gain_by_a_plan_what_the_daemon_predicted_and_lose_a_segment_by_a_departure() {
        let host = Host::measuring().lasting(JUDGED_WITHIN).simgpu(SMALL);
        let (host, mut daemon) = host.with_daemon();
        let _mps = mps(&host);
        let socket = host.path().join("ensemble.sock");
        let start = |name: &str| {
            let run = host.run(&["--name", name, "--sm", "90%"], torch().python(), &[]);
            let mut command = by_mps(&host, torch().prepared(run));
            command.arg(script("torch_ensemble")).arg(&socket);
            let mut process = host.spawn(command);
            process.await_line_within(|line| line == "serves", STARTS_WITHIN);
            process
        };
        let mut a = start("a");
        learn_times(&host, "a");
        // While `a` listens, it launches nothing, so kernels of `b` run alone.
        a.say("listen");
        a.await_exactly("listens");
        let mut b = start("b");
        learn_times(&host, "b");
        b.say("join");
        let plan = || plan_of(&host, "a");
        let found = await_value_within(plan, |found| found["plan"].is_object(), COMMAND_LIMIT);
        assert_eq!(found["plan"]["pays"], true, "{found}");
        let mut longest_us = |since: &str| -> u64 {
            b.say(&format!("longest {since}"));
            let said = b.await_line_within(|line| line.starts_with(since), COMMAND_LIMIT);
            said.strip_prefix(since).and_then(|us| us.trim().parse().ok()).expect(&said)
        };
        longest_us("start");
        host.shows(&["plan", "on", "a"]);
        // The daemon writes this line before it installs the plan.
        let logged = daemon.await_error_line(|line| line.contains("the tenants follow a plan on trial"));
        let predicted = logged.split_once("predicted_gain=").and_then(|(_, rest)| rest.split(' ').next());
        let predicted: f64 = predicted.and_then(|gain| gain.parse().ok()).expect(&logged);
        // The predicted gain is a part of the time, and the measured gain a part of the work.
        let predicted_speed = 1.0 / (1.0 - predicted);
        let predicted_gain = predicted_speed - 1.0;
        assert!(predicted_gain > ALLOWED, "a plan without gain would pass: {logged}");

        // Each look starts a process, which takes time from the servers.
        let look = || {
            thread::sleep(LOOK_EVERY);
            plan()
        };
        let is_judged = |found: &Value| found["deployment"]["stage"] != "trial";
        let judged = await_value_within(look, is_judged, JUDGED_WITHIN);
        assert_eq!(judged["deployment"]["stage"], "kept", "{judged}");
        let measured_gain = judged["deployment"]["gain"].as_f64().expect("a gain");
        let measured_speed = 1.0 + measured_gain;
        println!("{measured_speed:.3} times as fast with the plan, predicted {predicted_speed:.3}");
        let most_gain = measured_gain + judged["deployment"]["noise"].as_f64().expect("a noise");
        assert!(most_gain >= LEAST_GAIN * predicted_gain, "predicted {predicted_gain}: {judged}");
        assert!((measured_speed / predicted_speed - 1.0).abs() <= ALLOWED, "{judged}");

        // The longest wait at a cut lasts as long as the other tenant's segment.
        let segment_us = number(&found["plan"], "longest_wait_ns") / 1000;
        await_value_within(look, |found| found["deployment"]["follows"] == true, JUDGED_WITHIN);
        let followed_us = longest_us("trial");
        a.say("depart");
        let is_dropped = |found: &Value| found["deployment"]["stage"] == "dropped";
        await_value_within(look, is_dropped, JUDGED_WITHIN);
        let departed_us = longest_us("departure");
        println!("an answer took {followed_us} us at most, {departed_us} us beside a departure");
        assert!(departed_us <= followed_us + segment_us, "a segment of {segment_us} us");
    }
}
