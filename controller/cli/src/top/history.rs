//! The shares that tenants had in the last minutes.

use deepres_model::admin::Status;
use std::collections::{BTreeMap, VecDeque};

const NS_PER_S: u64 = 1_000_000_000;
/// The time that the history shows, ns.
pub const SPAN_NS: u64 = 180 * NS_PER_S;

/// The share of a tenant on a GPU at one look: the time, ns of `CLOCK_MONOTONIC`, and the share,
/// parts per million.
type Look = (u64, u32);

/// The shares by tenant and GPU.
#[derive(Debug, Default)]
pub struct History(BTreeMap<(String, usize), VecDeque<Look>>);

impl History {
    /// Notes the shares of a status. Forgets tenants that the status no longer has.
    pub fn note(&mut self, status: &Status) {
        let mut before = std::mem::take(&mut self.0);
        for tenant in &status.tenants {
            for account in &tenant.gpus {
                let key = (tenant.name.clone(), account.gpu);
                let mut looks = before.remove(&key).unwrap_or_default();
                looks.push_back((status.now_ns, account.recent_share_ppm));
                looks.retain(|(at_ns, _)| at_ns.saturating_add(SPAN_NS) > status.now_ns);
                self.0.insert(key, looks);
            }
        }
    }

    /// Returns the mean share of each of `columns` equal parts of the time, the latest last. A part
    /// without a look is `None`.
    pub fn columns(&self, tenant: &str, gpu: usize, now_ns: u64, columns: usize) -> Vec<Option<u32>> {
        let mut sums = vec![(0u64, 0u64); columns];
        let of_one_ns = (SPAN_NS / columns.max(1) as u64).max(1);
        for (at_ns, ppm) in self.0.get(&(tenant.to_owned(), gpu)).into_iter().flatten() {
            // A screen that stands still shows none of the later looks.
            let Some(ago_ns) = now_ns.checked_sub(*at_ns) else { continue };
            let parts_ago = usize::try_from(ago_ns / of_one_ns).unwrap_or(usize::MAX);
            if let Some((sum, looks)) = columns.checked_sub(parts_ago + 1).and_then(|part| sums.get_mut(part))
            {
                *sum += u64::from(*ppm);
                *looks += 1;
            }
        }
        sums.into_iter()
            .map(|(sum, looks)| sum.checked_div(looks).and_then(|mean| u32::try_from(mean).ok()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{AccountStatus, TenantStatus};

    fn status(at_s: u64, ppm: u32) -> Status {
        let account = AccountStatus { recent_share_ppm: ppm, ..AccountStatus::default() };
        let tenant = TenantStatus { name: "a".to_owned(), gpus: vec![account], ..TenantStatus::default() };
        Status { now_ns: at_s * NS_PER_S, tenants: vec![tenant], ..Status::default() }
    }

    #[test]
    fn a_column_is_the_mean_of_its_part_of_the_last_minutes() {
        let mut history = History::default();
        for (at_s, ppm) in [(1_000, 9), (1_100, 200), (1_200, 400), (1_201, 600)] {
            history.note(&status(at_s, ppm));
        }
        let columns = |tenant| history.columns(tenant, 0, 1_201 * NS_PER_S, 3);
        assert_eq!(columns("a"), [None, Some(200), Some(500)]);
        let before = history.columns("a", 0, 1_200 * NS_PER_S, 3);
        assert_eq!(before, [None, Some(200), Some(400)], "later looks do not count");
        assert_eq!(columns("b"), [None; 3]);
        history.note(&Status::default());
        assert!(history.0.is_empty());
    }
}
