//! What the project's scenarios have to show, held. Virtual time: the same on every machine.

use std::path::Path;

use crate::metrics::{self, Row};
use crate::policy::Policy;
use crate::scenario::Scenario;

fn rows(file: &str, policies: &[Policy]) -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let scenario = Scenario::read(&folder.join(file)).unwrap();
    metrics::evaluate(&scenario, policies).into_iter().map(|evaluated| evaluated.row).collect()
}

#[test]
fn three_applications_get_more_than_a_third_above_a_static_split_and_nearly_the_fluid_limit() {
    let row = &rows("three-applications.toml", &[Policy::Deepres])[0];
    assert!(row.progress_vs_static >= 1.35, "{}", row.progress_vs_static);
    assert!(row.progress_vs_gps >= 0.97, "{}", row.progress_vs_gps);
    assert!(row.jain >= 0.99, "{}", row.jain);
}

#[test]
fn backlogged_tenants_are_at_most_two_quanta_and_the_longest_kernel_behind_the_fluid_limit() {
    let row = &rows("backlogged.toml", &[Policy::Deepres])[0];
    assert!(row.max_lag_ms <= 2.0 * 5.0 + 30.0, "{}", row.max_lag_ms);
    assert!(row.throughput >= 0.98, "{}", row.throughput);
}

#[test]
fn a_guest_harvests_four_fifths_of_productions_pauses_for_less_than_a_hundredth_of_its_speed() {
    let rows = rows("production-and-best-effort.toml", &[Policy::Deepres, Policy::TgsLike, Policy::HamiLike]);
    let figures = |row: &Row| (row.production_speed.unwrap(), row.harvested_fraction.unwrap());
    let (speed, harvested) = figures(&rows[0]);
    assert!(speed >= 0.99 && harvested >= 0.8, "{speed}, {harvested}");
    for other in &rows[1..] {
        let (other_speed, other_harvested) = figures(other);
        // Whoever harvests more does it by slowing production.
        assert!(other_speed < speed, "{}: {other_speed}", other.policy);
        assert!(other_harvested < harvested || other_speed < 0.9, "{}: {other_harvested}", other.policy);
    }
}

#[test]
fn a_guest_adds_no_more_than_its_longest_kernel_and_a_hand_off_to_a_service() {
    for file in ["bursty-production.toml", "long-requests.toml"] {
        let row = &rows(file, &[Policy::Deepres])[0];
        let added_ms = row.p99_added_ms.unwrap();
        // Kernels of 1 ms, a tenth more or less, and hand-offs of 0.1 ms.
        assert!(added_ms <= 1.1 + 0.1, "{file}: {added_ms}");
        // More than 0.6 of what the guest does alone.
        assert!(row.tenants[1].progress > 0.6, "{file}: {}", row.tenants[1].progress);
    }
}

#[test]
fn a_scenario_gives_the_same_figures_each_time() {
    let twice: Vec<String> = (0..2)
        .map(|_| {
            let rows = rows("three-applications.toml", &[Policy::Deepres, Policy::HamiLike]);
            serde_json::to_string(&rows).unwrap()
        })
        .collect();
    assert_eq!(twice[0], twice[1]);
}
