//! The demo's figures: differences between two moments, as a table and as JSON.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, Result};
use serde::Serialize;
use simgpu_engine::truth;

use super::Moment;
use crate::host::{Ps, TenantGpu};

/// Nanoseconds in a second.
const NS_PER_S: f64 = 1e9;
/// Parts per million in a whole.
const PPM: f64 = 1e6;
/// Bytes in a gibibyte.
const GIB: f64 = (1_u64 << 30) as f64;

/// Figures of the time between two moments.
#[derive(Serialize)]
pub struct Report {
    device: &'static str,
    seconds: f64,
    /// Part of the time in which both tenants had work running or waiting.
    gpu_bound_fraction: f64,
    tenants: Vec<Tenant>,
    /// The largest error of a tenant, in percentage points. An error is the distance between its
    /// metered and its true share, or between its true share and its entitlement. Without a record
    /// of the GPU: the distance between the metered share and the entitlement.
    max_share_error_points: f64,
    /// The largest error, if the due share takes the place of the entitlement. If a tenant has no
    /// work for a moment, the GPU goes to the other tenant. The other tenant then has nothing to
    /// make up for.
    max_due_error_points: f64,
}

#[derive(Serialize)]
struct Tenant {
    name: String,
    client: &'static str,
    /// The tenant's entitlement, as a part of the GPU.
    entitled_share: f64,
    /// Due share: the entitlement while both tenants had work, and the whole GPU while only this
    /// tenant had work.
    due_share: f64,
    /// The share by the meter of deepres.
    metered_share: f64,
    /// True share, which only a simulated GPU records.
    true_share: Option<f64>,
    launches: u64,
    gpu_s: f64,
    wait_s: f64,
    memory_bytes: u64,
    memory_limit_bytes: Option<u64>,
}

impl Report {
    /// Returns the figures of the time between two moments, for these tenants on the first GPU.
    pub fn between(
        device: &'static str,
        client: &'static str,
        names: &[&str],
        first: &Moment,
        last: &Moment,
    ) -> Result<Self> {
        let elapsed_ns = last.ps.now_ns.saturating_sub(first.ps.now_ns) as f64;
        let contended =
            |ps: &Ps| ps.gpus.first().map(|gpu| gpu.contended_ns).context("the daemon knows no GPU");
        let contended_ns = contended(&last.ps)?.saturating_sub(contended(&first.ps)?) as f64;

        let mut metered_ns = Vec::new();
        let mut true_ns = Vec::new();
        let mut due_ns = Vec::new();
        let mut tenants = Vec::new();
        for &name in names {
            let of = |ps: &'static str, moment: &Moment| -> Result<TenantGpu> {
                let found = moment.ps.on_first_gpu(name).map(|(_, gpu)| gpu.clone());
                found.with_context(|| {
                    format!("{name} has no session on the GPU at the {ps} of the measurement")
                })
            };
            let (before, after) = (of("beginning", first)?, of("end", last)?);
            let limit = last.ps.on_first_gpu(name).and_then(|(tenant, _)| tenant.memory_limit_bytes);
            let gpu_ns = after.gpu_ns.saturating_sub(before.gpu_ns);
            metered_ns.push(gpu_ns);
            due_ns.push(due(&after).saturating_sub(due(&before)));
            if let (Some(first_truth), Some(last_truth)) = (&first.truth, &last.truth) {
                let pids = pids(name, &[&first.ps, &last.ps]);
                true_ns.push(busy_ns(last_truth, &pids).saturating_sub(busy_ns(first_truth, &pids)));
            }
            let launches = |gpu: &TenantGpu| gpu.kernel_launches + gpu.graph_launches;
            tenants.push(Tenant {
                name: name.to_owned(),
                client,
                entitled_share: after.entitled_ppm.unwrap_or(0) as f64 / PPM,
                due_share: 0.0,
                metered_share: 0.0,
                true_share: None,
                launches: launches(&after).saturating_sub(launches(&before)),
                gpu_s: gpu_ns as f64 / NS_PER_S,
                wait_s: after.wait_ns.saturating_sub(before.wait_ns) as f64 / NS_PER_S,
                memory_bytes: after.memory_bytes,
                memory_limit_bytes: limit,
            });
        }
        for (tenant, share) in tenants.iter_mut().zip(shares(&metered_ns)) {
            tenant.metered_share = share;
        }
        for (tenant, share) in tenants.iter_mut().zip(shares(&due_ns)) {
            tenant.due_share = share;
        }
        for (tenant, share) in tenants.iter_mut().zip(shares(&true_ns)) {
            tenant.true_share = Some(share);
        }
        Ok(Self {
            device,
            seconds: elapsed_ns / NS_PER_S,
            gpu_bound_fraction: if elapsed_ns > 0.0 { contended_ns / elapsed_ns } else { 0.0 },
            max_share_error_points: largest(&tenants, |tenant| tenant.entitled_share),
            max_due_error_points: largest(&tenants, |tenant| tenant.due_share),
            tenants,
        })
    }

    /// Returns one line for each tenant.
    pub fn live_lines(&self) -> Vec<String> {
        let line = |tenant: &Tenant| {
            format!(
                "{:5.1} s  {:<9} {:5.1} % of the GPU (entitled to {:.0} %)  {:6} launches  {:6.2} s on it  {:6.2} s waiting  {}",
                self.seconds,
                tenant.name,
                tenant.metered_share * 100.0,
                tenant.entitled_share * 100.0,
                tenant.launches,
                tenant.gpu_s,
                tenant.wait_s,
                tenant.memory(),
            )
        };
        self.tenants.iter().map(line).collect()
    }
}

impl Tenant {
    /// Returns the larger of two distances: between true and expected share, and between metered
    /// and true share. Without a record, returns the distance between metered and expected share.
    fn error_points(&self, expected: f64) -> f64 {
        let distance = |one: f64, other: f64| (one - other).abs() * 100.0;
        match self.true_share {
            Some(truth) => distance(self.metered_share, truth).max(distance(truth, expected)),
            None => distance(self.metered_share, expected),
        }
    }

    fn memory(&self) -> String {
        let used = self.memory_bytes as f64 / GIB;
        match self.memory_limit_bytes {
            Some(limit) => format!("{used:.2} of {:.2} GiB", limit as f64 / GIB),
            None => format!("{used:.2} GiB"),
        }
    }
}

/// Returns the processes of a tenant that any of the moments lists.
fn pids(name: &str, moments: &[&Ps]) -> BTreeSet<u32> {
    let sessions = moments.iter().filter_map(|ps| Some(&ps.on_first_gpu(name)?.0.sessions));
    sessions.flatten().map(|session| session.pid).collect()
}

/// Returns the GPU time of these processes on the first GPU, ns.
fn busy_ns(truth: &truth::Snapshot, pids: &BTreeSet<u32>) -> u64 {
    let theirs = truth.processes.iter().filter(|process| pids.contains(&process.pid));
    theirs.filter_map(|process| process.gpus.first()).map(|gpu| gpu.busy_ns).sum()
}

/// Returns the GPU time that a tenant was due since its start, ns. While other tenants wanted the
/// GPU too, the tenant was due its part. While the tenant alone wanted the GPU, it was due the
/// whole time.
fn due(gpu: &TenantGpu) -> u64 {
    gpu.owed_ns.saturating_add(gpu.wanted_ns.saturating_sub(gpu.contended_ns))
}

/// Returns the largest error relative to these shares, in percentage points.
fn largest(tenants: &[Tenant], expected: impl Fn(&Tenant) -> f64) -> f64 {
    tenants.iter().map(|tenant| tenant.error_points(expected(tenant))).fold(0.0, f64::max)
}

/// Returns each part of the sum. If the sum is 0, each part is 0.
fn shares(ns: &[u64]) -> Vec<f64> {
    let sum = ns.iter().sum::<u64>() as f64;
    ns.iter().map(|&ns| if sum > 0.0 { ns as f64 / sum } else { 0.0 }).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} GPU, {:.1} s, both tenants had work for {:.1} % of the time\n",
            self.device,
            self.seconds,
            self.gpu_bound_fraction * 100.0
        )?;
        writeln!(
            f,
            "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  memory",
            "tenant", "entitled", "due", "metered", "truth", "launches", "GPU s", "waited s"
        )?;
        for tenant in &self.tenants {
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            writeln!(
                f,
                "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.2} {:>9.2}  {}",
                tenant.name,
                percent(tenant.entitled_share),
                percent(tenant.due_share),
                percent(tenant.metered_share),
                tenant.true_share.map_or_else(|| "unknown".to_owned(), percent),
                tenant.launches,
                tenant.gpu_s,
                tenant.wait_s,
                tenant.memory()
            )?;
        }
        write!(
            f,
            "\nlargest error of a share: {:.2} points; {:.2} points for the time in which both tenants had work",
            self.max_share_error_points, self.max_due_error_points
        )
    }
}

#[cfg(test)]
mod tests {
    use deepres_e2e::demo::TORCH_SCRIPT;

    use super::*;
    use crate::host::{self, Gpu, Session};

    /// Returns a moment at which tenant `a` (process 1) and tenant `b` (process 2) have used these
    /// amounts of GPU time, metered and true.
    fn moment(now_ns: u64, contended_ns: u64, metered: [u64; 2], truth: Option<[u64; 2]>) -> Moment {
        let tenant = |index: usize, name: &str, entitled_ppm| host::Tenant {
            name: name.into(),
            memory_limit_bytes: Some(1 << 30),
            suspended: false,
            gpus: vec![TenantGpu {
                gpu: 0,
                entitled_ppm: Some(entitled_ppm),
                gpu_ns: metered[index],
                // In the time in which not both tenants had work, the first tenant had work.
                wanted_ns: if index == 0 { now_ns } else { contended_ns },
                contended_ns,
                owed_ns: contended_ns * entitled_ppm / PPM as u64,
                wait_ns: now_ns / 10,
                kernel_launches: now_ns / 1000,
                graph_launches: 1,
                memory_bytes: 1 << 29,
                memory_by_kind: std::collections::BTreeMap::new(),
            }],
            sessions: vec![Session { pid: u32::try_from(index).unwrap() + 1 }],
        };
        let process = |pid: u32, busy_ns| truth::Process {
            pid,
            start_time: 0,
            comm: "python".into(),
            alive: true,
            sm_limit_ppm: None,
            gpus: vec![truth::ProcessGpu { busy_ns, ..Default::default() }],
        };
        Moment {
            ps: Ps {
                now_ns,
                gpus: vec![Gpu { contended_ns, ..Gpu::default() }],
                tenants: vec![tenant(0, "a", 700_000), tenant(1, "b", 300_000)],
            },
            truth: truth.map(|[a, b]| truth::Snapshot {
                at_ns: now_ns,
                gpus: Vec::new(),
                processes: vec![process(1, a), process(2, b), process(3, 1 << 40)],
            }),
        }
    }

    #[test]
    fn shares_are_of_the_time_between_the_moments() {
        let first = moment(1_000, 500, [1_000, 9_000], Some([5_000, 5_000]));
        let last = moment(2_001_000, 1_900_500, [1_001_000, 1_009_000], Some([1_365_000, 645_000]));
        let report = Report::between("simulated", "c", &["a", "b"], &first, &last).unwrap();
        assert!((report.gpu_bound_fraction - 0.95).abs() < 1e-9);
        let [a, b] = &report.tenants[..] else { panic!("two tenants") };
        assert!((a.metered_share - 0.5).abs() < 1e-9 && (b.metered_share - 0.5).abs() < 1e-9);
        assert!((a.true_share.unwrap() - 0.68).abs() < 1e-9, "processes of nobody do not count");
        assert_eq!(a.launches, 2000);
        // The due share is 0.7 of the 19/20 in which both had work, and all of the rest.
        assert!((a.due_share - 0.715).abs() < 1e-9 && (b.due_share - 0.285).abs() < 1e-9, "{}", a.due_share);
        assert!((report.max_due_error_points - 18.0).abs() < 1e-9, "{}", report.max_due_error_points);
        // The meter is 18 points from the truth. The truth is 2 points from the entitlement of `a`.
        assert!((report.max_share_error_points - 18.0).abs() < 1e-9, "{}", report.max_share_error_points);
    }

    #[test]
    fn without_a_record_the_error_is_between_meter_and_entitlement() {
        let (first, last) = (moment(0, 0, [0, 0], None), moment(1_000, 1_000, [650, 350], None));
        let report = Report::between("real", "c", &["a", "b"], &first, &last).unwrap();
        assert!((report.max_share_error_points - 5.0).abs() < 1e-9);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["tenants"][0]["true_share"], serde_json::Value::Null);
        assert_eq!(json["device"], "real");
    }

    #[test]
    fn the_json_keeps_its_keys() {
        let (first, last) = (moment(0, 0, [0, 0], None), moment(1_000, 1_000, [650, 350], None));
        let report = Report::between("real", "c", &["a", "b"], &first, &last).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        let keys =
            |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let expected = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<_>>();
        let of_report = [
            "device",
            "gpu_bound_fraction",
            "max_due_error_points",
            "max_share_error_points",
            "seconds",
            "tenants",
        ];
        let of_tenant = [
            "client",
            "due_share",
            "entitled_share",
            "gpu_s",
            "launches",
            "memory_bytes",
            "memory_limit_bytes",
            "metered_share",
            "name",
            "true_share",
            "wait_s",
        ];
        assert_eq!((keys(&json), keys(&json["tenants"][0])), (expected(&of_report), expected(&of_tenant)));
    }

    #[test]
    fn the_name_of_a_pytorch_client_says_so() {
        let (first, last) = (moment(0, 0, [0, 0], None), moment(1_000, 1_000, [650, 350], None));
        let report = Report::between("simulated", TORCH_SCRIPT, &["a", "b"], &first, &last).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["tenants"][0]["client"].as_str().unwrap().contains("torch"), "{json}");
    }

    #[test]
    fn a_tenant_that_is_not_there_is_an_error() {
        let one = moment(0, 0, [0, 0], None);
        assert!(Report::between("real", "c", &["a", "nobody"], &one, &one).is_err());
    }
}
