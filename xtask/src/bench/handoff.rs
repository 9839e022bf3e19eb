//! `cargo xtask bench handoff`: measures how fast the GPU goes from one tenant to the next. Also
//! measures how soon a tenant that is owed GPU time gets the GPU.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::pieces::{As, Kit, LONG_KERNEL_MS, SETTLED, Times, record};
use super::{bar, now_ns, quantile};
use crate::host::{Admin, Gpu, Host};

/// Number of shares that the benchmark sets one after another.
const SETTINGS: usize = 100;
/// The time for which each share stays. In this time, each tenant has several leases.
const SETTING_HOLDS: Duration = Duration::from_millis(60);
/// The larger share, percent. The two tenants have the larger share in turn.
const MAJOR_PERCENT: u32 = 90;
/// Number of launches in a client's log. A client makes fewer launches while one setting stays.
const LOG_PLACES: u64 = 4096;
/// Configuration for the run with the guest. The many requests cost owners more than a guest may
/// usually cost. Without this line, the daemon would keep the guest off, and the server would find
/// the GPU idle.
const GUESTS_MAY_HARM: &str = "max_harm = \"100%\"\n";
/// Requests per second of the tenant that waits for a best-effort holder.
const REQUESTS_PER_S: &str = "50";

const NS_PER_US: f64 = 1e3;
const NS_PER_MS: f64 = 1e6;
const US_PER_MS: f64 = 1e3;
const PPM_PER_PERCENT: u32 = 10_000;

/// Options of `cargo xtask bench handoff`.
#[derive(clap::Args)]
pub struct Options {
    /// Time to measure hand-offs, and requests beside a best-effort holder, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = super::seconds)]
    seconds: f64,
}

#[derive(Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

#[derive(Serialize)]
struct Report {
    /// Duration of a hand-off by the daemon: from the last work of one tenant to the first work of
    /// the next. Other idle time of the GPU in between is included.
    handoff_us: Quantiles,
    handoffs: u64,
    quantum_us: f64,
    /// Mean idle time of the GPU in a hand-off, between the work of two tenants, by the simulated
    /// GPU's record. The time does not include the GPU's switches between contexts.
    idle_per_handoff_us: f64,
    /// Idle time between a tenant's work and its own next work, for each hand-off. In this time the
    /// program waited for its results.
    idle_within_us: f64,
    /// Time of the GPU's switches between contexts, for each hand-off.
    switch_per_handoff_us: f64,
    /// Mean idle time of the GPU for a hand-off, divided by the quantum.
    idle_fraction_of_quantum: f64,
    /// Time from the request to the daemon until the first launch of the tenant with the larger
    /// share. A launch counts only after the daemon has confirmed the share.
    set_reaction_ms: Quantiles,
    /// Time for which a request's first launch waits while a best-effort tenant has the GPU.
    waiting_reaction_ms: Quantiles,
    guest_longest_kernel_ms: f64,
}

/// Measures hand-offs, new shares and waiting requests, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let kit = Kit::new()?;
    let mut report = hand_offs(&kit, options.seconds)?;
    report.set_reaction_ms = settings(&kit)?;
    (report.waiting_reaction_ms, report.guest_longest_kernel_ms) = waiting(&kit, options.seconds)?;
    Ok(report)
}

impl super::Report for Report {
    fn bars(&self) -> Vec<(String, bool)> {
        vec![
            bar("a new share within 10 ms (99 %)", self.set_reaction_ms.p99 <= 10.0),
            bar("a waiting tenant within 10 ms (99 %)", self.waiting_reaction_ms.p99 <= 10.0),
            bar("at most 2 % of the quantum idle in a hand-off", self.idle_fraction_of_quantum <= 0.02),
        ]
    }

    fn print(&self) {
        let report = self;
        let Report { handoff_us, set_reaction_ms: set, waiting_reaction_ms: waiting, .. } = report;
        println!(
            "{} hand-offs of {:.0} µs (median) to {:.0} µs (99 %)\n\
         the GPU idles for {:.0} µs in each, {:.2} % of the quantum of {:.1} ms, and switches for {:.0} µs\n\
         the GPU idles for another {:.0} µs in each while a tenant waits for its own results\n\
         a new share: first launch after {:.1} ms (median) to {:.1} ms (99 %)\n\
         a waiting tenant beside a best-effort holder with kernels of {:.1} ms: {:.1} ms (median) to {:.1} ms (99 %)",
            report.handoffs,
            handoff_us.p50,
            handoff_us.p99,
            report.idle_per_handoff_us,
            report.idle_fraction_of_quantum * 100.0,
            report.quantum_us / US_PER_MS,
            report.switch_per_handoff_us,
            report.idle_within_us,
            set.p50,
            set.p99,
            report.guest_longest_kernel_ms,
            waiting.p50,
            waiting.p99,
        );
    }
}

/// Measures hand-offs between two backlogged tenants.
fn hand_offs(kit: &Kit, seconds: f64) -> Result<Report> {
    let host = kit.host()?;
    let steps = ["busy_200usx100", "sync"];
    let mut clients = Vec::new();
    for name in ["one", "two"] {
        clients.push(kit.pace(&host, As::Tenant(&["--name", name, "--share", "50%"]), &steps)?);
    }
    kit.interrupt.sleep(SETTLED)?;
    let (before, first) = (gpu(&host)?, record(&host)?);
    kit.interrupt.sleep(Duration::from_secs_f64(seconds))?;
    let (after, last) = (gpu(&host)?, record(&host)?);
    clients.iter_mut().try_for_each(|client| client.still_runs())?;
    let handoffs = after.handoffs.saturating_sub(before.handoffs);
    ensure!(handoffs > 0, "there was no hand-off");
    let [first, last] = [&first, &last].map(|record| record.gpus.first().copied());
    let (first, last) = first.zip(last).context("the record has no GPU")?;
    let per_handoff_us = |ns: u64| ns as f64 / handoffs as f64 / NS_PER_US;
    let idle_us = per_handoff_us(last.idle_ns.saturating_sub(first.idle_ns));
    let idle_per_handoff_us = per_handoff_us(last.handover_idle_ns.saturating_sub(first.handover_idle_ns));
    let quantum_us = f64::midpoint(before.quantum_ns as f64, after.quantum_ns as f64) / NS_PER_US;
    Ok(Report {
        handoff_us: Quantiles {
            p50: after.handoff_p50_ns as f64 / NS_PER_US,
            p99: after.handoff_p99_ns as f64 / NS_PER_US,
        },
        handoffs,
        quantum_us,
        idle_per_handoff_us,
        idle_within_us: (idle_us - idle_per_handoff_us).max(0.0),
        switch_per_handoff_us: per_handoff_us(last.switch_ns.saturating_sub(first.switch_ns)),
        idle_fraction_of_quantum: idle_per_handoff_us / quantum_us,
        set_reaction_ms: Quantiles { p50: 0.0, p99: 0.0 },
        waiting_reaction_ms: Quantiles { p50: 0.0, p99: 0.0 },
        guest_longest_kernel_ms: 0.0,
    })
}

/// Measures new shares: exchanges the shares of two backlogged tenants again and again.
fn settings(kit: &Kit) -> Result<Quantiles> {
    let host = kit.host()?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let names = ["one", "two"];
    let mut clients = Vec::new();
    let mut logs = Vec::new();
    for name in names {
        let path = folder.path().join(name);
        let log = Log::create(&path)?;
        let shown = path.display().to_string();
        let arguments = ["--kernel", "busy_200us", "--kernels", "100", "--log", &shown];
        clients.push(kit.serve(&host, As::Tenant(&["--name", name, "--share", "50%"]), &arguments)?);
        logs.push(log);
    }
    let mut administrator = Admin::connect(&host)?;
    kit.interrupt.sleep(SETTLED)?;
    let mut reactions_ms = Vec::new();
    for setting in 0..SETTINGS {
        let (major, minor) = (setting % 2, (setting + 1) % 2);
        set_share(&mut administrator, names[minor], 100 - MAJOR_PERCENT)?;
        let asked_ns = now_ns();
        set_share(&mut administrator, names[major], MAJOR_PERCENT)?;
        let in_force_ns = now_ns();
        kit.interrupt.sleep(SETTING_HOLDS)?;
        let first_ns = logs[major]
            .first_after(in_force_ns)?
            .with_context(|| format!("{} launched nothing under its new share", names[major]))?;
        reactions_ms.push((first_ns - asked_ns) as f64 / NS_PER_MS);
    }
    clients.iter_mut().try_for_each(|client| client.still_runs())?;
    Ok(quantiles(reactions_ms))
}

/// Measures a latency tenant's requests beside a backlogged best-effort tenant.
fn waiting(kit: &Kit, seconds: f64) -> Result<(Quantiles, f64)> {
    let host = kit.configured_host(GUESTS_MAY_HARM)?;
    let guest_is = As::Tenant(&["--name", "guest", "--class", "best-effort"]);
    let mut guest = kit.pace(&host, guest_is, &["busy_1000usx32", "sync"])?;
    let seconds = seconds.to_string();
    let arguments = ["--kernel", "quick", "--rate", REQUESTS_PER_S, "--seconds", &seconds];
    let server_is = As::Tenant(&["--name", "server", "--slo", "50ms"]);
    let served = kit.serve(&host, server_is, &arguments)?.served()?;
    guest.still_runs()?;
    let Times { p50, p99, .. } = served.launch_us;
    Ok((Quantiles { p50: p50 / US_PER_MS, p99: p99 / US_PER_MS }, LONG_KERNEL_MS))
}

/// A client's log of the times when its launches returned.
struct Log(File);

impl Log {
    const WORD_BYTES: u64 = size_of::<u64>() as u64;

    fn create(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len((1 + LOG_PLACES) * Self::WORD_BYTES)?;
        Ok(Self(file))
    }

    fn word(&self, place: u64) -> Result<u64> {
        let mut bytes = [0; Self::WORD_BYTES as usize];
        self.0.read_exact_at(&mut bytes, place * Self::WORD_BYTES)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Returns the time of the first launch that returned after `at_ns`. Returns `None` if no
    /// launch did, or if the log does not reach back to `at_ns`.
    fn first_after(&self, at_ns: u64) -> Result<Option<u64>> {
        let launches = self.word(0)?;
        let mut first_ns = None;
        for launch in (launches.saturating_sub(LOG_PLACES)..launches).rev() {
            let returned_ns = self.word(1 + launch % LOG_PLACES)?;
            if returned_ns < at_ns {
                return Ok(first_ns);
            }
            first_ns = Some(returned_ns);
        }
        Ok(None)
    }
}

/// Sets a tenant's share. Returns once the share is in force.
fn set_share(admin: &mut Admin, tenant: &str, percent: u32) -> Result<()> {
    let share_ppm = percent * PPM_PER_PERCENT;
    let reply =
        admin.ask(&json!({ "op": "set", "tenant": tenant, "share_ppm": share_ppm, "memory_bytes": null }))?;
    ensure!(reply.contains("\"reply\":\"set\""), "the daemon did not set the share: {reply}");
    Ok(())
}

fn gpu(host: &Host) -> Result<Gpu> {
    host.ps()?.gpus.first().cloned().context("the daemon knows no GPU")
}

fn quantiles(mut values: Vec<f64>) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let at = |percent| quantile(&values, percent).unwrap_or(0.0);
    Quantiles { p50: at(50), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::super::Report as _;
    use super::*;

    #[test]
    fn a_hand_off_may_leave_the_gpu_idle_for_two_percent_of_the_quantum() {
        let report = |idle_per_handoff_us: f64| Report {
            handoff_us: Quantiles { p50: 0.0, p99: 0.0 },
            handoffs: 1,
            quantum_us: 5_000.0,
            idle_per_handoff_us,
            idle_within_us: 0.0,
            switch_per_handoff_us: 0.0,
            idle_fraction_of_quantum: idle_per_handoff_us / 5_000.0,
            set_reaction_ms: Quantiles { p50: 0.0, p99: 0.0 },
            waiting_reaction_ms: Quantiles { p50: 0.0, p99: 0.0 },
            guest_longest_kernel_ms: 0.0,
        };
        let holds = |report: Report| report.bars().iter().all(|(_, holds)| *holds);
        assert!(holds(report(99.0)) && !holds(report(101.0)));
        assert_eq!(serde_json::to_value(report(50.0)).unwrap()["idle_fraction_of_quantum"], 0.01);
    }

    #[test]
    fn a_log_tells_the_first_launch_after_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::create(&folder.path().join("log")).unwrap();
        assert_eq!(log.first_after(1).unwrap(), None);
        let put =
            |place: u64, word: u64| log.0.write_all_at(&word.to_ne_bytes(), place * Log::WORD_BYTES).unwrap();
        put(0, 3);
        for (place, at_ns) in [(1, 100), (2, 200), (3, 300)] {
            put(place, at_ns);
        }
        assert_eq!(log.first_after(150).unwrap(), Some(200));
        assert_eq!(log.first_after(301).unwrap(), None);
        assert_eq!(log.first_after(50).unwrap(), None, "it does not go back so far");
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let Quantiles { p50, p99 } = quantiles((1..=100).map(f64::from).collect());
        assert_eq!((p50, p99), (50.0, 99.0));
    }
}
