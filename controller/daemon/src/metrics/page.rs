//! The metrics of a status as text: Prometheus' own format, or OpenMetrics. Names, helps and units
//! come from the declaration of the status.

use deepres_model::admin::{Declared, Measure, Metric, Role, Status, info_name};
use deepres_model::clock::monotonic_ns;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const NS_PER_S: f64 = 1e9;
const MS_PER_S: f64 = 1e3;
const US_PER_S: f64 = 1e6;

/// The number of a histogram's buckets.
const BUCKETS: usize = 8;
/// The difference of the logarithms of two bounds: each bound is four times the bound before. The
/// greatest bound is the beginning of the last entry by length, and the last bucket has no bound.
/// So the bounds of waits are 32 µs, 128 µs and so on to 131 ms. The bounds of latencies are 512 µs
/// to 2.1 s.
const STEP_LOG2: usize = 2;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format.
    Prometheus,
    /// OpenMetrics.
    OpenMetrics,
}

impl Format {
    /// The type of OpenMetrics' content, without parameters.
    pub const OPEN_METRICS: &str = "application/openmetrics-text";

    /// Returns the type of the format's content.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The labels of one row.
type Labels = Vec<(&'static str, String)>;

/// Returns the metrics of a status as text.
pub fn page(status: Arc<Status>, format: Format) -> Result<String, fmt::Error> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Whole milliseconds keep the times of two pages equal.
    let unix_s = unix.as_secs_f64() - monotonic_ns() as f64 / NS_PER_S;
    let unix_s = (unix_s * MS_PER_S).round() / MS_PER_S;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { status, format, unix_s }));
    let mut text = String::new();
    match format {
        Format::Prometheus => text::encode_registry(&mut text, &registry)?,
        Format::OpenMetrics => text::encode(&mut text, &registry)?,
    }
    Ok(text)
}

#[derive(Debug)]
struct Page {
    status: Arc<Status>,
    format: Format,
    /// The Unix time at the zero of `CLOCK_MONOTONIC`, s.
    unix_s: f64,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &*self.status;
        let of_gpu = |index: usize| {
            let gpu = status.gpus.iter().find(|gpu| gpu.index == index);
            let uuid = gpu.map_or_else(String::new, |gpu| gpu.uuid.clone());
            // NVIDIA's exporter has the same labels.
            vec![("gpu", index.to_string()), ("UUID", uuid)]
        };
        let gpus: Vec<_> = status.gpus.iter().map(|gpu| (of_gpu(gpu.index), gpu)).collect();
        let of_tenant = |name: &str| vec![("tenant", name.to_owned())];
        let tenants: Vec<_> = status.tenants.iter().map(|tenant| (of_tenant(&tenant.name), tenant)).collect();
        let accounts = tenants.iter().flat_map(|(labels, tenant)| {
            tenant.gpus.iter().map(move |account| ([&labels[..], &of_gpu(account.gpu)].concat(), account))
        });
        let unmanaged: Vec<_> = status.unmanaged.iter().map(|process| (Labels::new(), process)).collect();
        self.rows(&mut encoder, &[(Labels::new(), status)])?;
        self.rows(&mut encoder, &[(Labels::new(), &status.daemon)])?;
        self.rows(&mut encoder, &gpus)?;
        self.rows(&mut encoder, &tenants)?;
        let accounts: Vec<_> = accounts.collect();
        let requests = accounts
            .iter()
            .filter_map(|(labels, account)| Some((labels.clone(), account.requests.as_ref()?)));
        self.rows(&mut encoder, &accounts)?;
        self.rows(&mut encoder, &requests.collect::<Vec<_>>())?;
        self.rows(&mut encoder, &unmanaged)
    }
}

impl Page {
    /// Writes all metrics of the type `T`. A row is a value of this type, with its labels.
    fn rows<T: Declared>(&self, encoder: &mut DescriptorEncoder<'_>, rows: &[(Labels, &T)]) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        for metric in T::METRICS.iter().filter(|metric| metric.role != Role::Label) {
            let (name, kind) = match metric.role {
                Role::Counter if self.format == Format::OpenMetrics => (metric.family(), MetricType::Counter),
                Role::Counter => (metric.name(), MetricType::Counter),
                Role::Histogram => (metric.name(), MetricType::Histogram),
                Role::Gauge | Role::Time | Role::Label => (metric.name(), MetricType::Gauge),
            };
            let mut family = encoder.encode_descriptor(&name, &metric.help(), None, kind)?;
            for (labels, of) in rows {
                self.sample(family.encode_family(labels)?, metric, (metric.read)(of))?;
            }
        }
        labels(encoder, rows)
    }

    fn sample<T: Declared>(
        &self,
        mut sample: MetricEncoder<'_>,
        metric: &Metric<T>,
        measure: Measure<'_>,
    ) -> fmt::Result {
        match measure {
            Measure::None | Measure::Text(_) => Ok(()),
            Measure::Lengths(sum, lengths) => {
                let buckets = buckets(lengths);
                let count = buckets.iter().fold(0, |sum: u64, (_, waits)| sum.saturating_add(*waits));
                let sum = metric.base(sum, self.unix_s);
                sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            }
            Measure::Number(number) => {
                let number = metric.base(number, self.unix_s);
                if metric.role == Role::Counter && self.format == Format::OpenMetrics {
                    sample.encode_counter::<NoLabelSet, f64, f64>(&number, None)
                } else {
                    // In Prometheus' format, a sample of a counter has the counter's own name.
                    sample.encode_gauge(&number)
                }
            }
        }
    }
}

/// Writes the metric with the labels of the rows: the number of rows with the same labels.
fn labels<T: Declared>(encoder: &mut DescriptorEncoder<'_>, rows: &[(Labels, &T)]) -> fmt::Result {
    let named: Vec<_> = T::METRICS.iter().filter(|metric| metric.role == Role::Label).collect();
    if named.is_empty() {
        return Ok(());
    }
    let mut counts = BTreeMap::<Labels, u32>::new();
    for (own, of) in rows {
        let named = named.iter().filter_map(|metric| {
            let text = match (metric.read)(of) {
                Measure::Text(text) => text.to_owned(),
                Measure::Number(number) => number.to_string(),
                Measure::None | Measure::Lengths(..) => return None,
            };
            Some((metric.field, text))
        });
        *counts.entry(own.iter().cloned().chain(named).collect()).or_default() += 1;
    }
    let help = T::ABOUT.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let name = info_name::<T>();
    let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
    for (labels, count) in &counts {
        family.encode_family(labels)?.encode_gauge(count)?;
    }
    Ok(())
}

/// Returns the buckets of a histogram: bounds in seconds, and the waits in each bucket alone.
/// `lengths` has one entry for each power of two of microseconds.
fn buckets(lengths: &[u64]) -> [(f64, u64); BUCKETS] {
    let first_log2 = lengths.len().saturating_sub(1 + STEP_LOG2 * (BUCKETS - 2));
    let mut buckets = [(f64::INFINITY, 0u64); BUCKETS];
    for (bucket, (bound_s, _)) in buckets.iter_mut().take(BUCKETS - 1).enumerate() {
        *bound_s = f64::from(1u32 << (first_log2 + STEP_LOG2 * bucket)) / US_PER_S;
    }
    for (entry, waits) in lengths.iter().enumerate() {
        // An entry's waits are shorter than two to the power of the next entry.
        let bucket = (entry + 1).saturating_sub(first_log2).div_ceil(STEP_LOG2).min(BUCKETS - 1);
        buckets[bucket].1 = buckets[bucket].1.saturating_add(*waits);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{AccountStatus, GpuStatus, RequestStatus, TenantStatus, UnmanagedStatus};
    use deepres_model::identity::{Container, Runtime};

    fn status() -> Arc<Status> {
        let gpu = GpuStatus { index: 1, uuid: "GPU-1".to_owned(), handoffs: 7, ..GpuStatus::default() };
        let mut account = AccountStatus {
            gpu: 1,
            entitled_ppm: Some(700_000),
            gpu_ns: 1_500_000_999,
            ..AccountStatus::default()
        };
        account.wait_ns = 2_000_000_000;
        (account.waits_by_length[0], account.waits_by_length[5], account.waits_by_length[17]) = (1, 2, 3);
        let tenant = TenantStatus {
            name: r#"a "b" \c"#.to_owned(),
            uid: 1000,
            class: "fair".to_owned(),
            paused: true,
            gpus: vec![account],
            ..TenantStatus::default()
        };
        let process = |pid| UnmanagedStatus {
            pid,
            uid: 7,
            kind: "compute".to_owned(),
            state: "held".to_owned(),
            ..UnmanagedStatus::default()
        };
        Arc::new(Status {
            gpus: vec![gpu],
            tenants: vec![tenant],
            unmanaged: vec![process(1), process(2)],
            ..Status::default()
        })
    }

    /// Checks that the page has each line.
    fn assert_lines(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "{line} is not in\n{page}");
        }
    }

    const ACCOUNT: &str = r#"{tenant="a \"b\" \\c",gpu="1",UUID="GPU-1"}"#;

    #[test]
    fn a_page_has_the_status_in_base_units_with_labels_that_join_with_those_of_nvidia() {
        let page = page(status(), Format::Prometheus).unwrap();
        assert_lines(
            &page,
            &[
                "# TYPE deepres_tenant_gpu_seconds_total counter",
                &format!("deepres_tenant_gpu_seconds_total{ACCOUNT} 1.5"),
                &format!("deepres_tenant_entitled_ratio{ACCOUNT} 0.7"),
                r#"deepres_tenant_paused{tenant="a \"b\" \\c"} 1.0"#,
                r#"deepres_gpu_handoffs_total{gpu="1",UUID="GPU-1"} 7.0"#,
                r#"deepres_tenant_info{tenant="a \"b\" \\c",uid="1000",class="fair"} 1"#,
                r#"deepres_unmanaged_processes{uid="7",kind="compute",state="held"} 2"#,
                "deepres_status_tenants{} 1.0",
            ],
        );
        assert!(!page.contains("# EOF") && !page.contains("fairness_ratio{"), "{page}");
    }

    #[test]
    fn a_tenant_of_kubernetes_has_the_names_of_its_pod() {
        let container =
            Container { runtime: Runtime::Containerd, id: "f".repeat(64), name: Some("main".to_owned()) };
        let mut tenant = TenantStatus {
            name: "vision/train-0/main".to_owned(),
            class: "fair".to_owned(),
            container: Some(container),
            namespace: Some("vision".to_owned()),
            pod: Some("train-0".to_owned()),
            ..TenantStatus::default()
        };
        let of = |tenant: &TenantStatus| {
            let status = Status { tenants: vec![tenant.clone()], ..Status::default() };
            page(Arc::new(status), Format::Prometheus).unwrap()
        };
        let line = r#"deepres_tenant_info{tenant="vision/train-0/main",uid="0",container="main",namespace="vision",pod="train-0",class="fair"} 1"#;
        assert_lines(&of(&tenant), &[line]);
        // Nobody told the daemon the names of the container and its pod.
        (tenant.namespace, tenant.pod) = (None, None);
        tenant.container.as_mut().unwrap().name = None;
        let line = r#"deepres_tenant_info{tenant="vision/train-0/main",uid="0",container="ffffffffffff",class="fair"} 1"#;
        assert_lines(&of(&tenant), &[line]);
    }

    #[test]
    fn a_gpu_tells_its_fault_only_while_it_has_one() {
        let info = |fault: Option<&str>| {
            let gpu = GpuStatus {
                uuid: "GPU-1".to_owned(),
                name: "H200".to_owned(),
                fault: fault.map(str::to_owned),
                ..GpuStatus::default()
            };
            page(Arc::new(Status { gpus: vec![gpu], ..Status::default() }), Format::Prometheus).unwrap()
        };
        let line = r#"deepres_gpu_info{gpu="0",UUID="GPU-1",name="H200"} 1"#;
        assert_lines(&info(None), &[line]);
        let line = r#"deepres_gpu_info{gpu="0",UUID="GPU-1",name="H200",fault="Xid 79"} 1"#;
        assert_lines(&info(Some("Xid 79")), &[line]);
    }

    #[test]
    fn openmetrics_names_the_family_and_ends() {
        let page = page(status(), Format::OpenMetrics).unwrap();
        let sample = format!("deepres_tenant_gpu_seconds_total{ACCOUNT} 1.5");
        assert_lines(&page, &["# TYPE deepres_tenant_gpu_seconds counter", &sample]);
        assert!(page.ends_with("\n# EOF\n"));
    }

    #[test]
    fn waits_are_in_eight_buckets_of_which_each_contains_those_before_it() {
        let page = page(status(), Format::Prometheus).unwrap();
        let in_bucket = |line: &&str| line.starts_with("deepres_tenant_wait_seconds_bucket");
        let counts: Vec<&str> =
            page.lines().filter(in_bucket).filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(counts, ["1", "3", "3", "3", "3", "3", "3", "6"]);
        assert!(page.contains("le=\"0.131072\"") && page.contains("le=\"+Inf\""), "{page}");
        let sum = format!("deepres_tenant_wait_seconds_sum{ACCOUNT} 2.0");
        assert_lines(&page, &[&sum, &format!("deepres_tenant_wait_seconds_count{ACCOUNT} 6")]);
    }

    #[test]
    fn latencies_are_in_eight_buckets_with_bounds_from_512_us_to_two_seconds() {
        let mut requests = RequestStatus { latency_ns: 9_000_000_000, ..RequestStatus::default() };
        let lengths = &mut requests.latencies_by_length;
        (lengths[8], lengths[9], lengths[21]) = (1, 2, 3);
        let account = AccountStatus { requests: Some(requests), ..AccountStatus::default() };
        let tenant = TenantStatus { gpus: vec![account], ..TenantStatus::default() };
        let status = Status { tenants: vec![tenant], ..Status::default() };
        let page = page(Arc::new(status), Format::Prometheus).unwrap();
        let bucket = |line: &str| -> Option<(f64, u64)> {
            let labels = line.strip_prefix("deepres_request_latency_seconds_bucket{")?;
            let bound = labels.split_once("le=\"")?.1.split('"').next()?;
            Some((bound.parse().ok()?, labels.rsplit(' ').next()?.parse().ok()?))
        };
        let buckets: Vec<_> = page.lines().filter_map(bucket).collect();
        let bounds_s =
            [0.000_512, 0.002_048, 0.008_192, 0.032_768, 0.131_072, 0.524_288, 2.097_152, f64::INFINITY];
        let expected = bounds_s.into_iter().zip([1, 3, 3, 3, 3, 3, 3, 6]);
        assert_eq!(buckets, expected.collect::<Vec<(f64, u64)>>(), "{page}");
    }

    #[test]
    fn a_page_with_many_tenants_is_small() {
        const TENANTS: usize = 250;
        // A page with a thousand tenants has at most 200 kB.
        const LARGEST: usize = 200_000 / 1_000 * TENANTS;
        let mut state = 1u64;
        // The numbers of real tenants are no more random than these.
        let mut number = move |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let gpus = (0..8).map(|index| GpuStatus {
            index,
            uuid: format!("GPU-{:032x}", (u128::from(number(u64::MAX)) << 64) | u128::from(number(u64::MAX))),
            ..GpuStatus::default()
        });
        let gpus: Vec<GpuStatus> = gpus.collect();
        let hour_ns = 3_600_000_000_000;
        let tenants = (0..TENANTS).map(|tenant| {
            let account = AccountStatus {
                gpu: tenant % gpus.len(),
                entitled_ppm: Some(number(1_000_000) as u32),
                gpu_ns: number(hour_ns),
                copy_ns: number(hour_ns),
                wait_ns: number(hour_ns),
                waits_by_length: std::array::from_fn(|_| number(100_000)),
                kernel_launches: number(100_000_000),
                graph_launches: number(1_000_000),
                wanted_ns: number(hour_ns),
                owed_ns: number(hour_ns),
                had_ns: number(hour_ns),
                memory_bytes: number(1 << 15) << 21,
                ..AccountStatus::default()
            };
            TenantStatus {
                name: format!("tenant-{tenant}"),
                uid: 1_000 + number(50) as u32,
                class: "fair".to_owned(),
                asked_share_ppm: Some(number(100) as u32 * 10_000),
                gpus: vec![account],
                ..TenantStatus::default()
            }
        });
        let tenants = tenants.collect();
        let status = Status { gpus: gpus.clone(), tenants, ..Status::default() };
        let text = page(Arc::new(status), Format::OpenMetrics).unwrap();
        let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut compressed, text.as_bytes()).unwrap();
        let bytes = compressed.finish().unwrap().len();
        assert!(bytes <= LARGEST, "{bytes} of {} bytes", text.len());
    }
}
