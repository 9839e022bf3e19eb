//! Measures shares over one time span, by the simulated GPU's record and by the meter of deepres.

use std::{thread, time::Duration};

use simgpu_engine::truth::Snapshot;

use crate::{Host, Process, Ps, Tally};

/// Greatest difference in percentage points, both between a tenant's share and its entitlement and
/// between the meter and the record.
pub const ALLOWED_POINTS: f64 = 2.0;

/// Part of the time in which trainers keep the GPU busy at least, in percent.
const TRAINERS_BUSY_PERCENT: f64 = 70.0;
/// Time after which the first steps of a trainer after the warm-up are over.
const SETTLED: Duration = Duration::from_secs(1);

/// Asserts that the trainers, the tenants `major` and `minor`, share the GPU 70 to 30 for a time,
/// and keep it busy. The time begins when both train.
#[track_caller]
pub fn assert_trainers_share(
    host: &Host,
    trainers: &mut [Process],
    trains_within: Duration,
    duration: Duration,
) {
    for trainer in trainers {
        trainer.await_line_within(|line| line.contains("; training"), trains_within);
    }
    thread::sleep(SETTLED);
    let window = Window::measure(host, duration);
    window.assert_shares(&[("major", 70.0), ("minor", 30.0)]);
    let busy = window.busy_percent();
    assert!(busy >= TRAINERS_BUSY_PERCENT, "the trainers kept the GPU busy only {busy:.1} % of the time");
}

/// Two observations of a host, some time apart.
pub struct Window {
    before: (Snapshot, Ps),
    after: (Snapshot, Ps),
}

impl Window {
    /// Observes the host, sleeps for `duration`, and observes it again.
    pub fn measure(host: &Host, duration: Duration) -> Self {
        let before = (host.truth(), host.ps());
        thread::sleep(duration);
        Self { before, after: (host.truth(), host.ps()) }
    }

    /// Returns the GPU time by process.
    pub fn tally(&self) -> Tally {
        Tally::between(&self.before.0, &self.after.0)
    }

    /// Returns the tenant's part of the GPU time by the record, in percent.
    pub fn true_percent(&self, tenant: &str) -> f64 {
        let mut pids = self.before.1.find(tenant).map(|t| t.pids()).unwrap_or_default();
        pids.extend(self.after.1.find(tenant).map(|t| t.pids()).unwrap_or_default());
        pids.sort_unstable();
        pids.dedup();
        self.tally().percent(&pids)
    }

    /// Returns the tenant's part of the GPU time by the meter of deepres, in percent.
    pub fn metered_percent(&self, tenant: &str) -> f64 {
        let gpu_ns = |name: &str| {
            let before = self.before.1.find(name).map_or(0, |t| t.gpu_ns);
            self.after.1.find(name).map_or(0, |t| t.gpu_ns) - before
        };
        let total: u64 = self.after.1.tenants.iter().map(|t| gpu_ns(&t.name)).sum();
        gpu_ns(tenant) as f64 * 100.0 / total as f64
    }

    /// Returns the part of the time in which the GPU ran kernels, in percent.
    pub fn busy_percent(&self) -> f64 {
        let tally = self.tally();
        tally.total_ns as f64 * 100.0 / tally.elapsed_ns as f64
    }

    /// Asserts that each tenant had the share that it is owed, and that the meter agrees with the
    /// record.
    #[track_caller]
    pub fn assert_shares(&self, wanted: &[(&str, f64)]) {
        let lines: Vec<String> = wanted
            .iter()
            .map(|(name, percent)| {
                let (truth, metered) = (self.true_percent(name), self.metered_percent(name));
                format!("{name}: entitled {percent:.1} %, had {truth:.2} %, metered {metered:.2} %")
            })
            .collect();
        let table = format!("{}\nGPU busy {:.1} % of the time", lines.join("\n"), self.busy_percent());
        println!("{table}");
        for (name, percent) in wanted {
            assert!(
                (self.true_percent(name) - percent).abs() <= ALLOWED_POINTS,
                "{name} had another share\n{table}"
            );
            let gap = (self.metered_percent(name) - self.true_percent(name)).abs();
            assert!(gap <= ALLOWED_POINTS, "the meter of {name} is {gap:.2} points off\n{table}");
        }
    }
}
