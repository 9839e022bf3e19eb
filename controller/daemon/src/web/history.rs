//! The figures of the last ten minutes, in memory: a sample of each tenant on each GPU each second.

use deepres_model::admin::{AccountStatus, Status};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;
const BYTES_PER_MIB: u64 = 1 << 20;
/// Parts per million in a unit of a stored share: a hundredth of a percent.
const PPM_PER_SHARE: u32 = 100;
/// Number of samples of a series: ten minutes.
pub const SAMPLES: usize = 600;
/// The time between two samples, ns.
pub const EVERY_NS: u64 = NS_PER_S;
/// The most series. Each history takes 6 KB, so all histories take at most 25 MB.
const MOST_SERIES: usize = 4096;

/// The figures of a tenant on one GPU in one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sample {
    share: u16,
    wait_us: u32,
    memory_mib: u32,
}

/// The samples of a tenant on one GPU, the latest last.
#[derive(Debug, Default)]
struct Series {
    samples: VecDeque<Sample>,
    /// The wait time at the last sample, ns.
    waited_ns: u64,
}

/// The samples of all tenants.
#[derive(Debug, Default)]
pub struct History {
    series: BTreeMap<(String, usize), Series>,
    /// The time of the last sample, ns.
    sampled_ns: Option<u64>,
}

/// The samples of one tenant on one GPU, in the form of the answer to the page. The last sample is
/// the latest.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Told<'a> {
    /// The tenant's name.
    pub tenant: &'a str,
    /// The GPU's number.
    pub gpu: usize,
    /// The shares of the GPU's time, in hundredths of a percent.
    pub share: Vec<u16>,
    /// The time that threads waited at the gate in each second, us.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wait_us: Vec<u32>,
    /// The memory that the tenant held, MiB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_mib: Vec<u32>,
}

impl History {
    /// Takes a sample, if a second has passed since the last sample. Returns whether it did.
    pub fn note(&mut self, status: &Status) -> bool {
        let passed_ns = self.sampled_ns.map(|sampled_ns| status.now_ns.saturating_sub(sampled_ns));
        // Statuses come each second, a little early or late.
        if passed_ns.is_some_and(|passed_ns| passed_ns < EVERY_NS * 3 / 4) {
            return false;
        }
        self.sampled_ns = Some(status.now_ns);
        // In a time without a status, the shares are unknown.
        let missed = passed_ns.map_or(0, |passed_ns| (passed_ns / EVERY_NS).saturating_sub(1));
        let missed = usize::try_from(missed).unwrap_or(SAMPLES).min(SAMPLES);
        for series in self.series.values_mut() {
            series.samples.extend(std::iter::repeat_n(Sample::default(), missed));
            series.samples.push_back(Sample::default());
        }
        for tenant in &status.tenants {
            for account in &tenant.gpus {
                let key = (tenant.name.clone(), account.gpu);
                if self.series.len() >= MOST_SERIES && !self.series.contains_key(&key) {
                    continue;
                }
                let series = self.series.entry(key).or_insert_with(|| Series {
                    samples: VecDeque::from([Sample::default()]),
                    waited_ns: account.wait_ns,
                });
                if let Some(latest) = series.samples.back_mut() {
                    *latest = sample(account, series.waited_ns);
                }
                series.waited_ns = account.wait_ns;
            }
        }
        for series in self.series.values_mut() {
            let old = series.samples.len().saturating_sub(SAMPLES);
            series.samples.drain(..old);
        }
        self.series.retain(|_, series| series.samples.iter().any(|sample| *sample != Sample::default()));
        true
    }

    /// Returns the shares of all tenants.
    pub fn shares(&self) -> Vec<Told<'_>> {
        let series = self.series.iter();
        series
            .map(|((tenant, gpu), series)| Told {
                tenant,
                gpu: *gpu,
                share: series.samples.iter().map(|sample| sample.share).collect(),
                wait_us: Vec::new(),
                memory_mib: Vec::new(),
            })
            .collect()
    }

    /// Returns all figures of the tenant of this name.
    pub fn of(&self, name: &str) -> Vec<Told<'_>> {
        let own = self.series.range((name.to_owned(), 0)..).take_while(|((tenant, _), _)| tenant == name);
        own.map(|((tenant, gpu), series)| {
            let samples = || series.samples.iter();
            Told {
                tenant,
                gpu: *gpu,
                share: samples().map(|sample| sample.share).collect(),
                wait_us: samples().map(|sample| sample.wait_us).collect(),
                memory_mib: samples().map(|sample| sample.memory_mib).collect(),
            }
        })
        .collect()
    }
}

/// Returns the figures of an account now. `waited_ns` is the account's wait time at the last
/// sample, ns.
fn sample(account: &AccountStatus, waited_ns: u64) -> Sample {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Sample {
        share: u16::try_from(account.recent_share_ppm / PPM_PER_SHARE).unwrap_or(u16::MAX),
        wait_us: number(account.wait_ns.saturating_sub(waited_ns) / NS_PER_US),
        memory_mib: number(account.memory_bytes / BYTES_PER_MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::TenantStatus;

    fn status(at_s: u64, tenants: &[(&str, u32, u64)]) -> Status {
        let tenant = |(name, recent_share_ppm, wait_ns): &(&str, u32, u64)| TenantStatus {
            name: (*name).to_owned(),
            gpus: vec![AccountStatus {
                gpu: 1,
                recent_share_ppm: *recent_share_ppm,
                wait_ns: *wait_ns,
                memory_bytes: 3 * BYTES_PER_MIB,
                ..AccountStatus::default()
            }],
            ..TenantStatus::default()
        };
        Status { now_ns: at_s * NS_PER_S, tenants: tenants.iter().map(tenant).collect(), ..Status::default() }
    }

    #[test]
    fn a_sample_is_taken_each_second_and_a_second_without_one_is_empty() {
        let mut history = History::default();
        assert!(history.note(&status(100, &[("a", 500_000, 7_000_000)])));
        assert!(!history.note(&status(100, &[("a", 1, 0)])), "too early");
        assert!(history.note(&status(101, &[("a", 250_000, 9_000_000), ("b", 10_000, 0)])));
        assert!(history.note(&status(103, &[("b", 20_000, 0)])));
        let told = history.of("a");
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].share, [5_000, 2_500, 0, 0]);
        assert_eq!((&told[0].wait_us[..2], told[0].memory_mib[1]), (&[0, 2_000][..], 3));
        assert_eq!(history.of("b")[0].share, [100, 0, 200]);
        assert_eq!(history.shares().len(), 2);
        assert!(history.of("").is_empty() && history.of("c").is_empty());
    }

    #[test]
    fn a_tenant_that_is_gone_is_forgotten_after_ten_minutes_and_no_series_is_longer() {
        let mut history = History::default();
        for second in 0..1_000 {
            let tenants = [("old", 1_000, 0), ("present", 1_000, 0)];
            let from = usize::from(second > 100);
            history.note(&status(second, &tenants[from..]));
        }
        assert!(history.of("old").is_empty());
        assert_eq!(history.of("present")[0].share.len(), SAMPLES);
        history.note(&status(1_000_000, &[]));
        assert!(history.shares().is_empty(), "after a long sleep all is unknown");
    }
}
