//! The harm that a tenant with a false meter can do to an honest tenant, on a model of a GPU. The
//! model knows the true GPU time.

use crate::model::{MS, Model, Program, Says};
use deepres_abi::meter::Reading;

const SECOND: u64 = 1_000 * MS;
/// The least part of the time for an honest tenant. If a liar shows half of its use, it gets two
/// parts for each part of the honest tenant. A tenth of the time is tolerance.
const LEAST: f64 = 0.3;
/// The part of the time for an honest tenant beside a liar with garbage in its meter. This part is
/// the whole half that the honest tenant is owed.
const OWED: f64 = 0.5;
const TOLERANCE: f64 = 0.01;
/// The longest wait, ms. The arbiter gives up a drain after a second.
const LONGEST_WAIT_MS: u64 = 1_100;

fn honest() -> Program {
    Program::backlogged(500_000, &[MS])
}

fn liar(says: Says) -> Program {
    Program { says, ..honest() }
}

/// Returns two figures of an honest tenant beside `liars`: its GPU time as a part of the time, and
/// its longest wait, ms.
fn honest_beside(liars: &[Program]) -> (f64, u64) {
    let programs: Vec<Program> = std::iter::once(honest()).chain(liars.iter().cloned()).collect();
    let mut model = Model::new(&programs);
    model.run_until(2 * SECOND);
    let before_ns = model.used_ns()[0];
    model.run_until(32 * SECOND);
    ((model.used_ns()[0] - before_ns) as f64 / (30 * SECOND) as f64, model.longest_waits_ns()[0] / MS)
}

/// The meter page has ones in all bits.
fn ones(_: &Reading, _: Reading, _: u64) -> Reading {
    Reading {
        waiters: u32::MAX,
        launching: u32::MAX,
        in_flight: true,
        in_flight_ns: u64::MAX,
        compute_ns: u64::MAX,
        longest_ns: u64::MAX,
        ..Reading::default()
    }
}

/// The meter shows no GPU time, but the true wishes for the GPU.
fn nothing_used(_: &Reading, truth: Reading, _: u64) -> Reading {
    Reading { compute_ns: 0, ..truth }
}

/// The meter shows almost no GPU time.
fn a_trickle(before: &Reading, truth: Reading, _: u64) -> Reading {
    Reading { compute_ns: before.compute_ns + 1, ..truth }
}

/// The meter shows almost no GPU time, and wants nothing except in some looks.
fn a_trickle_and_nothing_to_do(before: &Reading, truth: Reading, now_ns: u64) -> Reading {
    let asks = (now_ns / MS).is_multiple_of(10);
    Reading {
        compute_ns: before.compute_ns + 1,
        in_flight: asks && truth.in_flight,
        in_flight_ns: 0,
        waiters: if asks { truth.waiters } else { 0 },
        launching: 0,
        ..truth
    }
}

/// The meter shows almost no GPU time, and work that never ends.
fn a_trickle_and_never_done(before: &Reading, truth: Reading, _: u64) -> Reading {
    Reading {
        in_flight: true,
        compute_ns: before.compute_ns + 1,
        in_flight_ns: u64::MAX,
        longest_ns: u64::MAX,
        ..truth
    }
}

/// The meter shows almost no GPU time, and work that seems long until the gate closes.
fn a_trickle_and_long_with_the_gpu(before: &Reading, truth: Reading, _: u64) -> Reading {
    let in_flight_ns = if truth.waiters > 0 { 1 } else { u64::MAX };
    Reading {
        in_flight: true,
        compute_ns: before.compute_ns + 1,
        in_flight_ns,
        longest_ns: u64::MAX,
        ..truth
    }
}

/// The meter shows half of the GPU time, which is just enough for the arbiter to believe it.
fn half(_: &Reading, truth: Reading, _: u64) -> Reading {
    Reading { compute_ns: truth.compute_ns / 100 * 51, ..truth }
}

/// The meter shows half of the GPU time, and work that seems long.
fn half_of_something_long(_: &Reading, truth: Reading, _: u64) -> Reading {
    Reading { compute_ns: truth.compute_ns / 100 * 51, in_flight_ns: u64::MAX, longest_ns: u64::MAX, ..truth }
}

/// The meter shows half of the time that passed as GPU time, and work that never ends.
fn half_and_never_done(_: &Reading, truth: Reading, now_ns: u64) -> Reading {
    Reading { in_flight: true, compute_ns: now_ns / 2, in_flight_ns: u64::MAX, longest_ns: u64::MAX, ..truth }
}

/// The meter shows an idle tenant at every second look.
fn now_and_then_idle(before: &Reading, truth: Reading, _: u64) -> Reading {
    if before.in_flight || before.waiters > 0 {
        Reading { compute_ns: before.compute_ns, ..Reading::default() }
    } else {
        Reading { in_flight: true, compute_ns: before.compute_ns + 1, ..truth }
    }
}

/// The meter shows an idle tenant most of the time. The liar shows work for a moment just before
/// the other tenants would get the GPU because of its idle meter.
fn idle_all_but_a_moment(before: &Reading, truth: Reading, _: u64) -> Reading {
    let in_flight = !before.in_flight;
    Reading { in_flight, waiters: truth.waiters, compute_ns: before.compute_ns + 1, ..Reading::default() }
}

/// The meter shows an idle tenant whenever the tenant's gate is open.
fn idle_with_the_gpu(before: &Reading, truth: Reading, _: u64) -> Reading {
    if truth.waiters > 0 { truth } else { Reading { compute_ns: before.compute_ns, ..Reading::default() } }
}

/// The meter shows the GPU time of each second only at the second's end.
fn in_lumps(before: &Reading, truth: Reading, now_ns: u64) -> Reading {
    let is_late = now_ns / SECOND > before.updated_ns / SECOND;
    let compute_ns = if is_late { truth.compute_ns } else { before.compute_ns };
    Reading { compute_ns, updated_ns: now_ns, ..truth }
}

const LIES: [(&str, Says); 13] = [
    ("ones", ones),
    ("nothing used", nothing_used),
    ("a trickle", a_trickle),
    ("a trickle, and never done", a_trickle_and_never_done),
    ("a trickle, and nothing to do", a_trickle_and_nothing_to_do),
    ("a trickle, and long with the GPU", a_trickle_and_long_with_the_gpu),
    ("half", half),
    ("half of something long", half_of_something_long),
    ("half, and never done", half_and_never_done),
    ("now and then idle", now_and_then_idle),
    ("idle all but a moment", idle_all_but_a_moment),
    ("idle with the GPU", idle_with_the_gpu),
    ("in lumps", in_lumps),
];

#[test]
fn an_honest_tenant_has_three_fifths_of_what_it_is_owed_or_more_whatever_the_others_meter_says() {
    for (name, says) in LIES {
        let (share, longest_wait_ms) = honest_beside(&[liar(says)]);
        println!("{name}: the honest one has {share:.3} and waits {longest_wait_ms} ms at most");
        assert!(share >= LEAST - TOLERANCE, "beside {name}: {share}");
        assert!(longest_wait_ms <= LONGEST_WAIT_MS, "beside {name}: {longest_wait_ms} ms");
    }
}

#[test]
fn garbage_in_a_meter_takes_nothing_from_the_other() {
    for says in [ones, nothing_used] {
        let (share, _) = honest_beside(&[liar(says)]);
        assert!(share >= OWED - TOLERANCE, "{share}");
    }
}
