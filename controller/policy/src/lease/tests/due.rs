//! Requests of owners that run at once, each on its part of the SMs (`lease/due.rs`).

use super::*;

/// An owner that begins a request in each SLO, and drops a request that is late.
struct Client {
    part_percent: u32,
    slo_ms: u64,
    /// The length of a request on the owner's part.
    run_ms: u64,
}

/// Lets the clients run for some seconds. Returns the part of each client's requests that ended in
/// time. The scheduler knows the clients' SLOs if `has_slos`.
fn in_time(clients: &[Client], has_slos: bool) -> Vec<f64> {
    let parts_percent: Vec<u32> = clients.iter().map(|client| client.part_percent).collect();
    let mut space = Space::new(&parts_percent);
    for (id, client) in (1..).zip(clients) {
        space.bench.scheduler.set_slo(id, has_slos.then_some(client.slo_ms * MS));
    }
    let (mut left_ms, mut ended) = (vec![0; clients.len()], vec![0u64; clients.len()]);
    let (settling_ms, end_ms): (u64, u64) = (1_000, 4_000);
    for now_ms in 0..end_ms {
        for ((id, client), left_ms) in (1..).zip(clients).zip(&mut left_ms) {
            if now_ms.is_multiple_of(client.slo_ms) {
                *left_ms = client.run_ms;
                space.resting.retain(|resting| *resting != id);
            }
        }
        let runs: Vec<bool> = space.ids().map(|id| space.bench.may_launch(id)).collect();
        space.pass_ms();
        for ((id, runs), (left_ms, ended)) in (1..).zip(runs).zip(left_ms.iter_mut().zip(&mut ended)) {
            if runs && *left_ms > 0 {
                *left_ms -= 1;
                if *left_ms == 0 {
                    space.resting.push(id);
                    *ended += u64::from(now_ms >= settling_ms);
                }
            }
        }
    }
    let each = clients.iter().zip(ended);
    each.map(|(client, ended)| (ended * client.slo_ms) as f64 / (end_ms - settling_ms) as f64).collect()
}

#[test]
fn if_not_all_requests_can_be_in_time_some_are_and_each_owner_has_its_part_of_them() {
    // The requests come at different times.
    let four = || [40, 44, 48, 52].map(|slo_ms| Client { part_percent: 50, slo_ms, run_ms: 26 });
    let without = in_time(&four(), false);
    assert!(without.iter().any(|part| *part < 0.1), "the case needs no refusals: {without:?}");
    let parts = in_time(&four(), true);
    assert!(parts.iter().all(|part| *part > 0.4), "two of four can be in time: {parts:?}");
}

#[test]
fn if_all_requests_can_be_in_time_none_is_late() {
    let client = |part_percent, slo_ms, run_ms| Client { part_percent, slo_ms, run_ms };
    let parts = in_time(&[client(60, 20, 8), client(60, 40, 16), client(40, 40, 24)], true);
    assert!(parts.iter().all(|part| *part >= 1.0), "{parts:?}");
}

#[test]
fn an_owner_whose_requests_are_never_in_time_has_its_area_beside_others_and_no_more() {
    let mut space = Space::new(&[60, 60, 30]);
    // The owner always wants the GPU, and its work never ends.
    space.bench.scheduler.set_slo(A, Some(5 * MS));
    let areas = space.areas();
    assert!((areas[0] - areas[1]).abs() < 0.03, "{areas:?}");
}

#[test]
fn owners_whose_requests_are_all_refused_share_the_gpu_as_without_slos() {
    let without = Space::new(&[60, 60, 30]).areas();
    let mut space = Space::new(&[60, 60, 30]);
    for id in space.ids() {
        space.bench.scheduler.set_slo(id, Some(MS));
    }
    // Each look comes half of an SLO late, so no request can be in time.
    space.look(1);
    space.look(MS / 2);
    let areas = space.areas();
    let are_near = areas.iter().zip(&without).all(|(area, without)| (area - without).abs() < 0.05);
    assert!(are_near, "{areas:?}, and without SLOs {without:?}");
}
