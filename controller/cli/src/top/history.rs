//! The shares that tenants had, and were owed, in the last minutes.

use deepres_model::admin::{AccountStatus, Status};
use std::collections::{BTreeMap, VecDeque};

const NS_PER_S: u64 = 1_000_000_000;
/// The time that the history shows, ns.
pub const SPAN_NS: u64 = 180 * NS_PER_S;

/// The shares of a tenant on a GPU, parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// The share that the tenant had in the last second.
    pub had_ppm: u32,
    /// The share that the tenant is owed; 0 while the others have its part.
    pub owed_ppm: u32,
}

impl Shares {
    /// Returns the shares of an account.
    pub fn of(account: &AccountStatus) -> Self {
        let owed_ppm = account.entitled_ppm.filter(|_| !account.is_lent).unwrap_or(0);
        Self { had_ppm: account.recent_share_ppm, owed_ppm }
    }
}

/// The shares at one look, after the time, ns of `CLOCK_MONOTONIC`.
type Look = (u64, Shares);

/// The sums of the shares in one part of the time, and the number of looks.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    had_ppm: u64,
    owed_ppm: u64,
    looks: u64,
}

impl Sums {
    fn add(&mut self, shares: Shares) {
        self.had_ppm += u64::from(shares.had_ppm);
        self.owed_ppm += u64::from(shares.owed_ppm);
        self.looks += 1;
    }

    /// Returns the means; `None` without a look.
    fn mean(self) -> Option<Shares> {
        let mean = |sum: u64| sum.checked_div(self.looks).and_then(|mean| u32::try_from(mean).ok());
        Some(Shares { had_ppm: mean(self.had_ppm)?, owed_ppm: mean(self.owed_ppm)? })
    }
}

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
                looks.push_back((status.now_ns, Shares::of(account)));
                looks.retain(|(at_ns, _)| at_ns.saturating_add(SPAN_NS) > status.now_ns);
                self.0.insert(key, looks);
            }
        }
    }

    /// Returns the mean shares of each of `columns` equal parts of the time, the latest last. A
    /// part without a look is `None`.
    pub fn columns(&self, tenant: &str, gpu: usize, now_ns: u64, columns: usize) -> Vec<Option<Shares>> {
        let mut sums = vec![Sums::default(); columns];
        let of_one_ns = (SPAN_NS / columns.max(1) as u64).max(1);
        for (at_ns, shares) in self.0.get(&(tenant.to_owned(), gpu)).into_iter().flatten() {
            // A screen that stands still shows none of the later looks.
            let Some(ago_ns) = now_ns.checked_sub(*at_ns) else { continue };
            let parts_ago = usize::try_from(ago_ns / of_one_ns).unwrap_or(usize::MAX);
            let part = columns.checked_sub(parts_ago.saturating_add(1));
            if let Some(sums) = part.and_then(|part| sums.get_mut(part)) {
                sums.add(*shares);
            }
        }
        sums.into_iter().map(Sums::mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::TenantStatus;

    /// Returns a status whose tenant had this share, and is owed the double.
    fn status(at_s: u64, ppm: u32) -> Status {
        let account =
            AccountStatus { recent_share_ppm: ppm, entitled_ppm: Some(2 * ppm), ..AccountStatus::default() };
        let tenant = TenantStatus { name: "a".to_owned(), gpus: vec![account], ..TenantStatus::default() };
        Status { now_ns: at_s * NS_PER_S, tenants: vec![tenant], ..Status::default() }
    }

    #[test]
    fn a_column_is_the_mean_of_its_part_of_the_last_minutes() {
        let mut history = History::default();
        for (at_s, ppm) in [(1_000, 9), (1_100, 200), (1_200, 400), (1_201, 600)] {
            history.note(&status(at_s, ppm));
        }
        let shares = |ppm| Some(Shares { had_ppm: ppm, owed_ppm: 2 * ppm });
        let columns = |tenant| history.columns(tenant, 0, 1_201 * NS_PER_S, 3);
        assert_eq!(columns("a"), [None, shares(200), shares(500)]);
        let before = history.columns("a", 0, 1_200 * NS_PER_S, 3);
        assert_eq!(before, [None, shares(200), shares(400)], "later looks do not count");
        assert_eq!(columns("b"), [None; 3]);
        history.note(&Status::default());
        assert!(history.0.is_empty());
    }

    #[test]
    fn nothing_is_owed_while_others_have_the_part() {
        let mut account =
            AccountStatus { recent_share_ppm: 1, entitled_ppm: Some(2), ..AccountStatus::default() };
        assert_eq!(Shares::of(&account), Shares { had_ppm: 1, owed_ppm: 2 });
        account.is_lent = true;
        assert_eq!(Shares::of(&account), Shares { had_ppm: 1, owed_ppm: 0 });
    }
}
