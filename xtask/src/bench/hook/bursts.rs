//! The cost of a launch for a program that launches every 5 µs and waits for the GPU now and then.
//! The program runs under a lease beside another tenant, and with a share but without a daemon.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Bench, TENANT, end, measure, median, start};

/// The most time that hooks may add to a launch, ns.
const LIMIT_NS: f64 = 40.0;
/// The most events that hooks may record for a launch.
const LIMIT_RECORDS: f64 = 0.1;
/// Number of bursts of a hundred launches in a run.
const BURSTS: &str = "2000";
/// The tenant that also wants the GPU all the time.
const OTHER: &str = "other";
/// The share without a daemon. The stub's kernels take no time, so the tenant never uses its share
/// up.
const SHARE: &str = "50%";

/// The costs of a launch, medians of the runs.
#[derive(Clone, Copy, Serialize)]
pub struct Bursts {
    /// Time that hooks add under a lease, ns.
    pub added_contended_ns: f64,
    /// Time that hooks add with a share and without a daemon, ns.
    pub added_standalone_ns: f64,
    /// Number of events that hooks record for a launch under a lease.
    pub records_per_launch_contended: f64,
}

/// Returns the bars, and whether the figures hold them.
pub fn bars(bursts: Option<&Bursts>) -> impl Iterator<Item = (String, bool)> {
    let within = |most: f64, figure: fn(&Bursts) -> f64| bursts.is_some_and(|bursts| figure(bursts) <= most);
    [
        (
            format!("a launch under a lease takes {LIMIT_NS} ns more at most"),
            within(LIMIT_NS, |bursts| bursts.added_contended_ns),
        ),
        (
            format!("a launch without a daemon takes {LIMIT_NS} ns more at most"),
            within(LIMIT_NS, |bursts| bursts.added_standalone_ns),
        ),
        (
            format!("{LIMIT_RECORDS} event records a launch at most"),
            within(LIMIT_RECORDS, |bursts| bursts.records_per_launch_contended),
        ),
    ]
    .into_iter()
}

/// Figures of one run of the client.
#[derive(Deserialize)]
struct Run {
    hooked_by: PathBuf,
    launch_ns: f64,
    records_per_launch: f64,
}

impl Run {
    fn is_hooked(&self) -> bool {
        self.hooked_by.file_name() == Some(Path::new("libdeepres.so").as_os_str())
    }
}

impl Bench {
    /// Measures launches in bursts: bare, under a lease and without a daemon in turn.
    pub(super) fn bursts(&self, rounds: u32) -> Result<Bursts> {
        let (mut bare, mut contended, mut standalone, mut records) = (vec![], vec![], vec![], vec![]);
        for _ in 0..rounds {
            self.interrupt.check()?;
            bare.push(self.burst(self.plain())?.launch_ns);
            self.interrupt.check()?;
            let run = self.burst_beside_other()?;
            contended.push(run.launch_ns);
            records.push(run.records_per_launch);
            self.interrupt.check()?;
            standalone.push(self.burst_alone()?.launch_ns);
        }
        let bare = median(&mut bare);
        Ok(Bursts {
            added_contended_ns: median(&mut contended) - bare,
            added_standalone_ns: median(&mut standalone) - bare,
            records_per_launch_contended: median(&mut records),
        })
    }

    fn burst(&self, mut command: Command) -> Result<Run> {
        measure(command.args(["--bursts", BURSTS]), |_| Ok(()))
    }

    fn burst_beside_other(&self) -> Result<Run> {
        let mut busy = self.tenant_named(OTHER);
        let (other, _) = start::<Map<String, Value>>(busy.arg(&self.client).arg("--busy"))?;
        let contended_ns = || -> Result<u64> {
            Ok(self.host.ps()?.on_first_gpu(TENANT).map_or(0, |(_, gpu)| gpu.contended_ns))
        };
        let before_ns = contended_ns()?;
        let mut tenant = self.tenant();
        tenant.arg(&self.client).args(["--bursts", BURSTS]);
        let run = measure(&mut tenant, |run: &Run| {
            ensure!(run.is_hooked() && contended_ns()? > before_ns, "the other tenant did not want the GPU");
            Ok(())
        })?;
        end(other)?;
        Ok(run)
    }

    fn burst_alone(&self) -> Result<Run> {
        let nowhere = tempfile::Builder::new().prefix("deepres-nowhere-").tempdir()?;
        let mut alone = self.plain();
        alone.env("LD_PRELOAD", self.artefacts.library()).env("DEEPRES_DIR", nowhere.path());
        alone.env("DEEPRES_SHARE", SHARE);
        let run = self.burst(alone)?;
        ensure!(run.is_hooked(), "the run without a daemon is not hooked");
        Ok(run)
    }
}
