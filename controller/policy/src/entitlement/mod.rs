//! Entitlements: the share of a GPU that each tenant is owed by its wish, its class and its
//! priority. The rules follow the paper DeepRes.
//!
//! Precedence: class, then share, then priority.
//!
//! 1. A **guaranteed** tenant is owed the share that it asked for. The daemon gives no guarantees
//!    that do not fit together ([`fits`]).
//! 2. A **fair** tenant that asked for a share is owed that share, as far as the guarantees leave
//!    room. If the guarantees leave too little room, such shares shrink in proportion.
//! 3. A **fair** tenant that asked for no share is owed its part of the rest, by its priority value
//!    ([`super::priority`]). If others asked for everything, each such tenant is still owed
//!    [`UNASKED_FLOOR_PPM`], but all together at most [`UNASKED_LIMIT_PPM`].
//! 4. A **best-effort** tenant is owed nothing. A best-effort tenant gets the GPU while no other
//!    tenant wants the GPU. Among best-effort tenants the priority value decides.
//!
//! These entitlements hold while all tenants want the GPU. **An idle tenant is no rival of the
//! others.** A tenant is idle if it has wanted nothing for [`IDLE_NS`]. The others are then owed as
//! much as without the idle tenant. The idle tenant is still owed its part among all tenants, and
//! gets that part at once when it comes back.
//!
//! In shorter pauses of a tenant, its part flows to tenants that want more, in proportion to their
//! entitlements. [`super::lease`] needs no rule for this, because it chooses only among tenants
//! that want the GPU. [`present`] computes the resulting shares at the present demand. [`explain`]
//! explains a tenant's share.

pub mod explain;
pub mod present;
pub mod waterfill;

use crate::TenantId;
use crate::class::Class;
use crate::priority::MIN_VALUE_PPM;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;
use deepres_abi::PPM;
use waterfill::{Vessel, pour_into};

/// The entitlement of a fair tenant without a wish, beside tenants that asked for everything.
pub const UNASKED_FLOOR_PPM: u64 = 10_000;

/// The most that all fair tenants without a wish are owed together.
pub const UNASKED_LIMIT_PPM: u64 = 500_000;

/// The time without a wish for the GPU after which a tenant is idle. This time is longer than the
/// pauses of a job at work, and short beside the time for which a user leaves a notebook alone.
pub const IDLE_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

/// The shortest time between two computations of entitlements for tenants that were idle and want
/// the GPU again. The bound limits the cost of many tenants that come and go.
pub const BACK_NS: u64 = Duration::from_millis(10).as_nanos() as u64;

/// The whole time of a GPU, parts per million.
const WHOLE: u64 = PPM as u64;

/// The wishes of a tenant, and the cap of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The class that the tenant wants.
    pub class: Class,
    /// The share that the tenant asks for, if any.
    pub asked_ppm: Option<u32>,
    /// The most that the tenant can be owed.
    pub cap_ppm: u32,
    /// The tenant's priority value.
    pub priority_ppm: u32,
    /// Whether the tenant has wanted nothing for [`IDLE_NS`], or may not run.
    pub is_idle: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self { class: Class::default(), asked_ppm: None, cap_ppm: PPM, priority_ppm: PPM / 2, is_idle: false }
    }
}

impl Request {
    fn wanted(&self) -> Option<u64> {
        self.asked_ppm.map(|ppm| u64::from(ppm.min(self.cap_ppm)))
    }

    fn promised(&self) -> u64 {
        if self.class == Class::Guaranteed { self.wanted().unwrap_or(0) } else { 0 }
    }
}

/// The rule from which a tenant's entitlement follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Rule {
    /// The tenant's share is guaranteed.
    Guaranteed,
    /// The tenant asked for the share.
    Asked,
    /// The tenant asked for more than the other tenants leave, and its share has shrunk.
    Shrunk,
    /// The tenant has its part, by priority, of the time for which no tenant asked.
    Rest,
    /// The tenant has all that its user may have.
    Capped,
    /// The tenant is a guest, and has the time that owners leave.
    Gaps,
}

/// The entitlement of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entitlement {
    /// The part of the GPU's time while all tenants that are not idle want the GPU, parts per
    /// million. For an idle tenant: the part while all tenants want the GPU. 0 for best effort.
    pub ppm: u32,
    /// The tenant's weight among the tenants with which it competes; at least 1.
    pub weight_ppm: u32,
    /// The rule behind the entitlement.
    pub rule: Rule,
}

/// Returns the sum of the guaranteed shares, parts per million.
pub fn promised_ppm(requests: impl IntoIterator<Item = Request>) -> u64 {
    requests.into_iter().map(|request| request.promised()).sum()
}

/// Returns whether the GPU has room for all guarantees among `requests`.
pub fn fits(requests: impl IntoIterator<Item = Request>) -> bool {
    promised_ppm(requests) <= WHOLE
}

/// Working memory of [`entitle`].
#[derive(Debug, Default)]
pub struct Work {
    vessels: Vec<Vessel>,
    order: Vec<usize>,
    /// The parts of fair tenants without a wish, then the parts of guests.
    rest: Vec<u64>,
    gaps: Vec<u64>,
}

impl Work {
    /// Makes room for this many tenants, so that [`entitle`] does not allocate.
    pub fn reserve(&mut self, tenants: usize) {
        let Self { vessels, order, rest, gaps } = self;
        vessels.reserve(tenants.saturating_sub(vessels.len()));
        order.reserve(tenants.saturating_sub(order.len()));
        rest.reserve(tenants.saturating_sub(rest.len()));
        gaps.reserve(tenants.saturating_sub(gaps.len()));
    }
}

/// Returns the entitlement of each tenant. The entitlements of tenants that are not idle add up to
/// at most [`PPM`].
pub fn entitlements(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, Entitlement> {
    let requests: Vec<_> = requests.iter().map(|(tenant, request)| (*tenant, *request)).collect();
    let mut owed = Vec::new();
    entitle(&requests, &mut Work::default(), &mut owed);
    requests.iter().map(|(tenant, _)| *tenant).zip(owed).collect()
}

/// Writes the entitlement of each tenant into `owed`, in the order of `requests`. The entitlements
/// of tenants that are not idle add up to at most [`PPM`].
pub fn entitle(requests: &[(TenantId, Request)], work: &mut Work, owed: &mut Vec<Entitlement>) {
    owed.clear();
    let none = Entitlement { ppm: 0, weight_ppm: 1, rule: Rule::Gaps };
    owed.resize(requests.len(), none);
    while_all_want(requests, |_| true, work, owed);
    if requests.iter().any(|(_, request)| request.is_idle) {
        while_all_want(requests, |request| !request.is_idle, work, owed);
    }
}

/// Returns the requests of tenants that are not idle.
fn awake(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, Request> {
    let awake = requests.iter().filter(|(_, request)| !request.is_idle);
    awake.map(|(tenant, request)| (*tenant, *request)).collect()
}

/// Writes the entitlements of those tenants that `counts` picks, as if there were no other tenants.
/// The returned entitlements add up to at most [`PPM`].
fn while_all_want(
    requests: &[(TenantId, Request)],
    counts: impl Fn(&Request) -> bool,
    work: &mut Work,
    owed: &mut [Entitlement],
) {
    let counted = || requests.iter().map(|(_, request)| request).filter(|request| counts(request));
    let promised = promised_ppm(counted().copied());
    let room = WHOLE.saturating_sub(promised);
    let fair = || counted().filter(|request| request.class != Class::BestEffort);
    let asked_sum: u64 =
        fair().filter(|request| request.class == Class::Fair).filter_map(Request::wanted).sum();
    let unasked = fair().filter(|request| request.asked_ppm.is_none()).count() as u64;

    let floor = (unasked * UNASKED_FLOOR_PPM).min(UNASKED_LIMIT_PPM).min(room);
    let for_unasked = room.saturating_sub(asked_sum).max(floor);
    let for_asked = if unasked == 0 { room } else { room - for_unasked };

    let Work { vessels, order, rest, gaps } = work;
    let is_unasked = |request: &&Request| request.class != Class::BestEffort && request.asked_ppm.is_none();
    parts(for_unasked, counted().filter(is_unasked), vessels, order, rest);
    let is_guest = |request: &&Request| request.class == Class::BestEffort;
    parts(WHOLE, counted().filter(is_guest), vessels, order, gaps);
    // Both iterators are in the order of the requests that they belong to.
    let (mut rest, mut gaps) = (rest.iter().copied(), gaps.iter().copied());
    for ((_, request), owed) in requests.iter().zip(owed).filter(|((_, request), _)| counts(request)) {
        let (part, rule) = match (request.class, request.wanted()) {
            (Class::BestEffort, _) => (gaps.next().unwrap_or(0), Rule::Gaps),
            (Class::Guaranteed, Some(wanted)) if promised > WHOLE => {
                (wanted * WHOLE / promised, Rule::Shrunk)
            }
            (Class::Guaranteed, Some(wanted)) => (wanted, Rule::Guaranteed),
            (Class::Fair, Some(wanted)) if asked_sum > for_asked => {
                (wanted * for_asked / asked_sum, Rule::Shrunk)
            }
            (Class::Fair, Some(wanted)) => (wanted, Rule::Asked),
            (_, None) => (rest.next().unwrap_or(0), Rule::Rest),
        };
        let rule = match rule {
            Rule::Guaranteed | Rule::Asked if request.asked_ppm > Some(request.cap_ppm) => Rule::Capped,
            Rule::Rest if request.cap_ppm < PPM && part == u64::from(request.cap_ppm) => Rule::Capped,
            rule => rule,
        };
        let weight_ppm = part.max(1) as u32;
        let ppm = if rule == Rule::Gaps { 0 } else { part as u32 };
        *owed = Entitlement { ppm, weight_ppm, rule };
    }
}

/// Divides `total` among the tenants of `picked`, by priority and up to their caps. Writes the
/// parts into `parts`, in the order of the tenants.
fn parts<'a>(
    total: u64,
    picked: impl Iterator<Item = &'a Request>,
    vessels: &mut Vec<Vessel>,
    order: &mut Vec<usize>,
    parts: &mut Vec<u64>,
) {
    vessels.clear();
    vessels.extend(picked.map(|request| Vessel {
        weight: u64::from(request.priority_ppm.max(MIN_VALUE_PPM)),
        cap: if request.class == Class::BestEffort { WHOLE } else { u64::from(request.cap_ppm) },
    }));
    pour_into(total, vessels, order, parts);
}

#[cfg(test)]
mod tests;
