//! Metrics as Prometheus takes them: promtool checks the page, the alert rules and the board, and a
//! real Prometheus scrapes the daemon.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use deepres_e2e::artefacts::repository;
use deepres_e2e::host::free_address;
use deepres_e2e::prelude::*;

/// Time within which a sample is in Prometheus' database, however busy the machine is. The daemon
/// ends a silent connection after ten seconds.
const SCRAPED_WITHIN: Duration = Duration::from_secs(40);
/// Time for which Prometheus scrapes the daemon once a second.
const SCRAPED_FOR: Duration = Duration::from_secs(60);
/// More connections than the daemon serves at once.
const SILENT: usize = 20;

fn deployed(file: &str) -> PathBuf {
    repository().join("controller/deploy/metrics").join(file)
}

fn promtool(arguments: &[&str]) -> Command {
    let mut command = Command::new("promtool");
    command.args(arguments);
    command
}

/// Returns the page of metrics.
fn page(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("the daemon listens");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the daemon answers");
    answer.split_once("\r\n\r\n").expect("an answer has a head").1.to_owned()
}

/// Returns the board's expressions as recording rules, with values for the board's variables.
fn board_rules() -> String {
    let board = fs::read_to_string(deployed("board.json")).expect("the board is there");
    let board: Value = serde_json::from_str(&board).expect("the board is JSON");
    let panels = board["panels"].as_array().expect("the board has panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("a panel has targets"));
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(number, target)| {
            let expression = target["expr"].as_str().expect("a target has an expression");
            let expression = expression.replace("$__rate_interval", "1m");
            let expression = expression.replace("$tenant", ".*").replace("$instance", ".*");
            json!({ "record": format!("board:{number}"), "expr": expression })
        })
        .collect();
    // JSON is YAML too.
    json!({ "groups": [{ "name": "board", "rules": rules }] }).to_string()
}

#[test]
#[ignore = "deep: needs Debian's Prometheus"]
fn promtool_takes_the_page_the_rules_and_the_board() {
    let address = free_address();
    let (host, _daemon) = Host::new().config(&format!("metrics = \"{address}\"\n")).with_daemon();
    host.finish(host.run(&["--name", "first"], c_client("backlog"), &["--seconds", "0.5"])).success();
    eventually_within("the tenant is in the metrics", SCRAPED_WITHIN, || page(address).contains("first"));
    let text = host.path().join("page.txt");
    fs::write(&text, page(address)).expect("a folder of our own");
    let mut check = Command::new("sh");
    check.arg("-c").arg(format!("promtool check metrics < {}", text.display()));
    let said = host.finish(check).success();
    assert_eq!(said.stderr, "", "promtool has no advice");

    let board = host.path().join("board.yml");
    fs::write(&board, board_rules()).expect("a folder of our own");
    for rules in [deployed("rules.yml"), board] {
        host.finish(promtool(&["check", "rules", &rules.to_string_lossy()])).success();
    }
    host.finish(promtool(&["test", "rules", &deployed("rules-test.yml").to_string_lossy()])).success();
}

#[test]
#[ignore = "deep: needs Debian's Prometheus"]
fn prometheus_sees_counters_that_never_fall_though_the_daemon_is_killed() {
    let (metrics, own) = (free_address(), free_address());
    let host = Host::new().lasting(SCRAPED_FOR).config(&format!("metrics = \"{metrics}\"\n"));
    let (host, mut daemon) = host.with_daemon();
    let config = host.path().join("prometheus.yml");
    let job = json!({ "job_name": "deepres", "static_configs": [{ "targets": [metrics.to_string()] }] });
    let every = json!({ "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" });
    let rules = [deployed("rules.yml")];
    let text = json!({ "global": every, "scrape_configs": [job], "rule_files": rules }).to_string();
    fs::write(&config, text).expect("a folder of our own");
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", host.path().join("tsdb").display()))
        .arg(format!("--web.listen-address={own}"));
    let _prometheus = host.spawn(prometheus);
    let began = Instant::now();
    let url = format!("http://{own}");
    let shows = |expression: &str| {
        let asked = host.finish(promtool(&["query", "instant", &url, expression]));
        if asked.code == 0 { asked.stdout } else { String::new() }
    };
    let eventually_shows = |expression: &str, part: &str| {
        eventually_within(expression, SCRAPED_WITHIN, || shows(expression).contains(part));
    };
    let start = |name| host.start(host.run(&["--name", name], c_client("backlog"), &[]), "ready");
    let _jobs = [start("first"), start("second")];
    eventually_shows("rate(deepres_tenant_had_seconds_total[5s]) > 0.3", "tenant=\"second\"");

    let top = host.shows(&["top", "--once"]);
    assert!(top.contains("first") && top.contains("second"), "{top}");

    daemon.kill();
    let mut daemon = host.daemon();
    eventually_shows("changes(deepres_daemon_started_timestamp_seconds[2m])", "=> 1 ");
    eventually_shows("min(changes(deepres_tenant_kernel_launches_total[3s]))", "=> 2 ");
    thread::sleep(SCRAPED_FOR.saturating_sub(began.elapsed()));
    eventually_shows(&format!("count_over_time(up[5m]) >= {}", SCRAPED_FOR.as_secs()), "=> ");
    let page = page(metrics);
    let counters = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    for counter in counters.chain(["deepres_tenant_wait_seconds_count", "deepres_tenant_wait_seconds_sum"]) {
        let resets = shows(&format!("max(resets({counter}[5m]))"));
        assert!(resets.contains("=> 0 "), "{counter}: {resets}");
    }

    let silent: Vec<TcpStream> =
        (0..SILENT).map(|_| TcpStream::connect(metrics).expect("the daemon listens")).collect();
    assert_eq!(host.ps().tenants.len(), 2, "administrators are served meanwhile");
    // Prometheus can keep its connection, or be without one until the server closes the silent
    // ones.
    eventually_shows("up", "=> 1 ");
    drop(silent);

    daemon.terminate();
    eventually_shows("ALERTS{alertname=\"DeepresDaemonNotInCharge\"}", "=> 1 ");
}
