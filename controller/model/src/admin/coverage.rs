//! How a process reaches the driver, as administrators see it. Everything here is what the process says of itself.

use deepres_abi::coverage::{Coverage, unaccounted};
use deepres_abi::driver::{ApiId, TABLE_HASH};
use deepres_abi::forwarded::{self, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCoverage {
    /// Its tenant.
    pub tenant: String,
    /// Its process, as the daemon sees it.
    pub pid: u32,
    /// Its command line, shortened.
    pub client: String,
    /// Functions that it looked up and was given our hooks of.
    pub hooked: Vec<String>,
    /// Functions that it looked up and was given as they are.
    pub forwarded: Vec<String>,
    /// How many of them by the reason for which they need no hook (`query`, `setting`, `code`, …). What we hook and could not is `none`.
    pub forwarded_because: BTreeMap<String, u64>,
    /// What it called that deepres sees and does not account for.
    pub unaccounted: Vec<UnaccountedCalls>,
    /// Functions that we hook, given as they are since they belong to another copy of the driver than the first.
    pub other_instance: u64,
    /// Functions that we hook, given as they are since nobody knows their address.
    pub unknown_address: u64,
    /// Functions that a newer driver has and this deepres has not heard of.
    pub unknown_names: u64,
    /// Requests for the driver's private tables, behind which nobody sees what is called.
    pub export_tables: u64,
    /// Libraries whose calls, or look-ups, go to the driver without us (`RTLD_DEEPBIND`, `dlmopen`).
    pub bound_past: u64,
    /// Times that somebody was given the C library's own `dlsym`, by which functions are found without us.
    pub given_lookups: u64,
    /// The process has another version of deepres, whose functions cannot be named here.
    pub is_other_version: bool,
}

/// Calls of one function that deepres sees and does not account for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnaccountedCalls {
    /// The function.
    pub function: String,
    /// `work` that is neither gated nor metered, `memory` that is not charged, or `host` memory, which has no limit.
    pub class: String,
    /// Calls.
    pub calls: u64,
}

impl ProcessCoverage {
    /// What is in the page of a process.
    pub fn read(tenant: &str, pid: u32, client: &str, page: &Coverage) -> Self {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let table = page.table.load(Ordering::Acquire);
        // A page that nobody has written yet holds nothing to be named wrongly.
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
            other_instance: count(&page.other_instance),
            unknown_address: count(&page.unknown_address),
            unknown_names: count(&page.unknown_names),
            export_tables: count(&page.export_tables),
            bound_past: count(&page.bound_past),
            given_lookups: count(&page.given_lookups),
            is_other_version,
        }
    }

    /// Calls that put work on a GPU or brought memory of one without being accounted for.
    pub fn past(&self) -> u64 {
        let on_gpu = self.unaccounted.iter().filter(|calls| calls.class != "host");
        on_gpu.fold(0, |sum, calls| sum.saturating_add(calls.calls))
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
        let read = || ProcessCoverage::read("train", 7, "python", &page);
        assert_eq!(
            (read().hooked, read().forwarded),
            (vec!["cuLaunchKernel".to_owned()], vec!["cuCtxGetId".to_owned()])
        );
        assert_eq!(read().forwarded_because, BTreeMap::from([("query".to_owned(), 1)]));
        page.table.fetch_add(1, Ordering::Relaxed);
        assert_eq!((read().hooked.len(), read().is_other_version, read().export_tables), (0, true, 2));
    }
}
