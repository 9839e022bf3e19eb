use super::jobs::{DAY_MS, Job, SECOND_MS};
use super::sim::Sim;
use super::{Policy, Row, SURPLUS, Size, evaluate, jobs};

const SMALL: Size = Size { nodes: 10, ..Size::LARGE };

fn rows() -> [Row; 3] {
    evaluate(SMALL, SURPLUS, &Policy::ALL).try_into().unwrap()
}

#[test]
fn the_jobs_of_a_day_ask_for_three_quarters_of_the_gpus() {
    let jobs = jobs::draw(SMALL);
    assert_eq!(jobs.len(), 2_400);
    assert!(jobs.is_sorted_by_key(|job| job.arrives_ms) && jobs.iter().all(|job| job.arrives_ms < DAY_MS));
    let asked: u64 = jobs.iter().map(|job| job.share as u64 * job.runs_ms).sum();
    let load = asked as f64 / (80 * 100 * DAY_MS) as f64;
    assert!((0.68..0.82).contains(&load), "{load}");
}

#[test]
fn a_day_is_the_same_each_time() {
    assert_eq!(rows(), rows());
}

#[test]
fn deepres_refuses_hardly_a_job_and_writes_less_than_the_others() {
    let [deepres, counted, hami] = rows();
    assert!(deepres.refused * 20 < counted.refused && hami.refused == 0, "{deepres:?} {counted:?}");
    assert!(counted.refused_though_room > 1_000, "{counted:?}");
    assert!(deepres.wait_s_p99 < counted.wait_s_p99, "{deepres:?} {counted:?}");
    assert!(deepres.api_writes_per_job < 2.0, "{deepres:?}");
    assert!(counted.api_writes_per_job > 3.0 && hami.api_writes_per_job > 6.0, "{counted:?} {hami:?}");
    for row in [&deepres, &counted, &hami] {
        assert!(row.used > 0.6 && row.not_started < 60, "{row:?}");
    }
}

#[test]
fn the_fragments_of_four_gpus_hold_no_job_of_ninety() {
    let job = |arrives_s: u64, share: usize, runs_s: u64| Job {
        arrives_ms: arrives_s * SECOND_MS,
        share,
        runs_ms: runs_s * SECOND_MS,
    };
    // Four jobs of 60, and one of 90 while 160 are free: it waits until the first job ends.
    let jobs =
        [job(0, 60, 600), job(20, 60, 3_600), job(40, 60, 3_600), job(60, 60, 3_600), job(120, 90, 60)];
    let size = Size { nodes: 1, gpus: 4, jobs_per_gpu: 1 };
    let [deepres, counted] =
        [Policy::Deepres, Policy::Counted].map(|policy| Sim::new(policy, size, SURPLUS, &jobs).run());
    assert_eq!((deepres.refused, deepres.not_started, deepres.waited_on_node), (0, 0, 0), "{deepres:?}");
    assert!(counted.refused > 3, "{counted:?}");
    assert_eq!(counted.refused_though_room, 0, "no GPU had room");
}

/// Returns a number with a comma after each three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = digits.len() % 3;
    let (begin, rest) = digits.split_at(first);
    let threes = (0..rest.len()).step_by(3).map(|place| &rest[place..place + 3]);
    Some(begin).filter(|begin| !begin.is_empty()).into_iter().chain(threes).collect::<Vec<_>>().join(",")
}

/// A row of the page's table: its head, and the figure of a policy.
type Line = (&'static str, fn(&Row) -> String);

#[test]
#[ignore = "deep: a day on a thousand nodes"]
fn the_page_has_the_figures_of_a_day_on_a_thousand_nodes() {
    const LINES: [Line; 13] = [
        ("writes a second that the API server sees (`api_writes_per_s`)", |row| {
            format!("{:.1}", row.api_writes_per_s)
        }),
        ("writes a second in the worst minute (`api_writes_per_s_peak`)", |row| {
            format!("{:.1}", row.api_writes_per_s_peak)
        }),
        ("writes for each job (`api_writes_per_job`)", |row| format!("{:.2}", row.api_writes_per_job)),
        ("decisions of a node, an hour (`decisions_per_node_h`)", |row| grouped(row.decisions_per_node_h)),
        ("messages on a node, an hour (`messages_per_node_h`)", |row| grouped(row.messages_per_node_h)),
        ("pods refused by a node (`refused`)", |row| grouped(row.refused as f64)),
        ("pods refused by a node although a GPU of the cluster had room (`refused_though_room`)", |row| {
            grouped(row.refused_though_room as f64)
        }),
        ("jobs pending though a GPU had room (`pending_though_room`)", |row| {
            grouped(row.pending_though_room as f64)
        }),
        ("containers that waited on their node (`waited_on_node`)", |row| grouped(row.waited_on_node as f64)),
        (
            "containers that waited on their node although a GPU of the cluster had room (`waited_though_room`)",
            |row| grouped(row.waited_though_room as f64),
        ),
        ("wait from a job's arrival to its start, mean, s (`wait_s_mean`)", |row| grouped(row.wait_s_mean)),
        ("wait from a job's arrival to its start, 99th percentile, s (`wait_s_p99`)", |row| {
            grouped(row.wait_s_p99)
        }),
        ("part of the GPUs used (`used`)", |row| format!("{:.1} %", row.used * 100.0)),
    ];
    let rows = evaluate(Size::LARGE, SURPLUS, &Policy::ALL);
    let cells = |of: fn(&Row) -> String| rows.iter().map(of).collect::<Vec<_>>().join(" | ");
    let table: String = LINES.iter().map(|(head, of)| format!("| {head} | {} |\n", cells(*of))).collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scale.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table), "docs/scale.md lacks these figures:\n{table}");
}
