//! The coverage of a process, for administrators. All values come from the metered process itself.

use deepres_abi::coverage::{Bypass, Bypasses, Coverage, unaccounted};
use deepres_abi::driver::{ApiId, TABLE_HASH};
use deepres_abi::forwarded::{self, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The coverage of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCoverage {
    /// The process's tenant.
    pub tenant: String,
    /// The process's id, as the daemon sees it.
    pub pid: u32,
    /// The process's command line, shortened.
    pub client: String,
    /// Functions that the process looked up and got as hooks.
    pub hooked: Vec<String>,
    /// Functions that the process looked up and got unchanged from the driver.
    pub forwarded: Vec<String>,
    /// Numbers of forwarded functions by the reason why they need no hook (`query`, `setting`,
    /// `code`, …). The reason `none` counts functions that should have a hook but could not get
    /// one.
    pub forwarded_because: BTreeMap<String, u64>,
    /// Calls that deepres sees but does not account for.
    pub unaccounted: Vec<UnaccountedCalls>,
    /// Calls of hooked functions that the interposer let through without metering or charging them.
    #[serde(default)]
    pub bypassed: Vec<BypassedCalls>,
    /// Functions with hooks that the process got unchanged, because the functions belong to a
    /// second copy of the driver.
    pub other_instance: u64,
    /// Functions with hooks that the process got unchanged, because deepres does not know their
    /// addresses.
    pub unknown_address: u64,
    /// Functions of a newer driver that this deepres does not know.
    pub unknown_names: u64,
    /// Requests for the driver's private tables. deepres cannot see calls through these tables.
    pub export_tables: u64,
    /// Libraries whose calls or look-ups reach the driver without deepres (`RTLD_DEEPBIND`,
    /// `dlmopen`).
    pub bound_past: u64,
    /// Number of times that a library got the C library's own `dlsym`, which finds functions
    /// without deepres.
    pub given_lookups: u64,
    /// Number of ways of look-up by which the process gets the driver's own `cuLaunchKernel`.
    #[serde(default)]
    pub lost_ways: u64,
    /// Whether the process has another version of deepres. This daemon cannot name the functions of
    /// such a process.
    pub is_other_version: bool,
}

/// Calls of one function that deepres sees but does not account for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnaccountedCalls {
    /// The function.
    pub function: String,
    /// The kind of the calls: `work` that is neither gated nor metered, `memory` that is not
    /// charged, or `host` memory, which has no limit.
    pub class: String,
    /// Number of calls.
    pub calls: u64,
}

/// Calls that the interposer let through for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassedCalls {
    /// The reason, for example `no-event`.
    pub reason: String,
    /// A sentence that explains the reason.
    pub help: String,
    /// Whether the bypassed calls may give the GPU work or take its memory.
    pub has_effect: bool,
    /// The number of calls that the process's interposer let through for this reason since the
    /// process began.
    pub calls: u64,
}

impl BypassedCalls {
    fn of(reason: Bypass, calls: u64) -> Self {
        Self {
            reason: reason.name().to_owned(),
            help: reason.help().to_owned(),
            has_effect: reason.has_effect(),
            calls,
        }
    }
}

impl ProcessCoverage {
    /// Reads the coverage of a process from its meter page.
    pub fn read(tenant: &str, pid: u32, client: &str, page: &Coverage, bypasses: &Bypasses) -> Self {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let table = page.table.load(Ordering::Acquire);
        // An unwritten page has the table 0, and names no functions.
        let is_other_version = table != TABLE_HASH && table != 0;
        let functions = || ApiId::ALL.into_iter().filter(|_| !is_other_version);
        let names = |is_wanted: &dyn Fn(ApiId) -> bool| {
            functions().filter(|id| is_wanted(*id)).map(|id| id.symbol().to_owned()).collect()
        };
        let is_forwarded = |id: ApiId| page.is_looked_up(id) && !page.is_hooked(id);
        let mut forwarded_because = BTreeMap::new();
        for id in functions().filter(|id| is_forwarded(*id)) {
            let reason = forwarded::reason(id).map_or("none", Reason::name);
            *forwarded_because.entry(reason.to_owned()).or_default() += 1;
        }
        Self {
            tenant: tenant.to_owned(),
            pid,
            client: client.to_owned(),
            hooked: names(&|id| page.is_hooked(id)),
            forwarded: names(&is_forwarded),
            forwarded_because,
            unaccounted: functions()
                .filter_map(|id| {
                    let (class, calls) = (unaccounted(id)?, page.calls(id));
                    let function = id.symbol().to_owned();
                    (calls != 0).then(|| UnaccountedCalls { function, class: class.name().to_owned(), calls })
                })
                .collect(),
            bypassed: Bypass::ALL
                .into_iter()
                .map(|reason| BypassedCalls::of(reason, bypasses.calls(reason)))
                .filter(|bypassed| bypassed.calls != 0)
                .collect(),
            other_instance: count(&page.other_instance),
            unknown_address: count(&page.unknown_address),
            unknown_names: count(&page.unknown_names),
            export_tables: count(&page.export_tables),
            bound_past: count(&page.bound_past),
            given_lookups: count(&page.given_lookups),
            lost_ways: count(&page.lost_ways),
            is_other_version,
        }
    }

    /// Returns the number of calls that launched work or allocated GPU memory, and that deepres
    /// does not account for.
    pub fn past(&self) -> u64 {
        let on_gpu = self.unaccounted.iter().filter(|calls| calls.class != "host").map(|calls| calls.calls);
        let bypassed = self.bypassed.iter().filter(|calls| calls.has_effect).map(|calls| calls.calls);
        on_gpu.chain(bypassed).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_version_gives_sums_and_no_names() {
        let page = Coverage::new();
        let own = Coverage::new();
        own.note(ApiId::cuLaunchKernel, true);
        own.note(ApiId::cuCtxGetId, false);
        own.export_tables.store(2, Ordering::Relaxed);
        page.copy_from(&own);
        let bypasses = Bypasses::new();
        let read = || ProcessCoverage::read("train", 7, "python", &page, &bypasses);
        assert_eq!(
            (read().hooked, read().forwarded),
            (vec!["cuLaunchKernel".to_owned()], vec!["cuCtxGetId".to_owned()])
        );
        assert_eq!(read().forwarded_because, BTreeMap::from([("query".to_owned(), 1)]));
        page.table.fetch_add(1, Ordering::Relaxed);
        assert_eq!((read().hooked.len(), read().is_other_version, read().export_tables), (0, true, 2));
    }

    #[test]
    fn calls_let_through_are_listed_by_reason_and_those_with_an_effect_are_past() {
        let bypasses = Bypasses::new();
        (0..3).for_each(|_| bypasses.count(Bypass::Captured));
        (0..2).for_each(|_| bypasses.count(Bypass::NoEvent));
        let read = ProcessCoverage::read("train", 7, "python", &Coverage::new(), &bypasses);
        let counted = [(Bypass::Captured, 3), (Bypass::NoEvent, 2)];
        assert_eq!(read.bypassed, counted.map(|(reason, calls)| BypassedCalls::of(reason, calls)));
        assert_eq!(read.past(), 2);
    }
}
