//! The share of a GPU that each tenant is owed, after DeepRes: by what it asked for, by its class, by its priority.
//!
//! Precedence: class, then share, then priority.
//!
//! 1. A **guaranteed** tenant is owed the share it asked for. Promises that do not fit together are not made ([`fits`]).
//! 2. A **fair** tenant that asked for a share is owed it, as far as the promises leave room; if they leave too little, such shares
//!    shrink in proportion.
//! 3. A **fair** tenant that did not ask has its part of the rest, by its priority value ([`super::priority`]). Beside tenants that asked for
//!    everything it is owed [`UNASKED_FLOOR_PPM`] (all of them together [`UNASKED_LIMIT_PPM`] at most).
//! 4. A **best-effort** tenant is owed nothing. It has the GPU while no other wants it; among such tenants the priority value weighs.
//!
//! This is what is owed while all want the GPU. **Who is idle is nobody's rival**: what a tenant asked for that has wanted nothing for a while
//! ([`IDLE_NS`]) is not kept from the others, who are owed what they would be if it were not there; it is owed its part among all, and has it at
//! once when it is back. In shorter pauses what a tenant leaves flows to those who want more, in proportion to what they are owed:
//! [`super::lease`] does that by itself, since it only ever chooses among those who want the GPU. [`present`] says what comes of it at the
//! demand of the moment, [`explain`] how a tenant's part comes about.

pub mod explain;
pub mod present;
pub mod waterfill;

use crate::TenantId;
use crate::class::Class;
use crate::priority::MIN_VALUE_PPM;
use deepres_abi::PPM;
use std::collections::BTreeMap;
use std::time::Duration;
use waterfill::{Vessel, fill};

/// What a fair tenant that asked for nothing is owed beside tenants that asked for everything.
pub const UNASKED_FLOOR_PPM: u64 = 10_000;

/// What all of those are owed together, at most.
pub const UNASKED_LIMIT_PPM: u64 = 500_000;

/// A tenant that has wanted nothing for longer than this is idle: longer than the pauses of a job at work, and short beside the time for which someone leaves
/// a notebook alone.
pub const IDLE_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

/// Who was idle and wants the GPU has its part again at once; many that come and go so cost no more than one review each so often.
pub const BACK_NS: u64 = Duration::from_millis(10).as_nanos() as u64;

/// The whole GPU.
const WHOLE: u64 = PPM as u64;

/// What a tenant asks for, and what its user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The kind of promise it wants.
    pub class: Class,
    /// The share asked for, if any.
    pub asked_ppm: Option<u32>,
    /// The most that the tenant can be owed.
    pub cap_ppm: u32,
    /// Its priority value.
    pub priority_ppm: u32,
    /// It has wanted nothing for [`IDLE_NS`], or is not to run.
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

/// The rule that a tenant's part follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// It is guaranteed.
    Guaranteed,
    /// It asked for it.
    Asked,
    /// It asked for more than there is room for beside the others.
    Shrunk,
    /// Its part, by priority, of what nobody asked for.
    Rest,
    /// All that its user may have.
    Capped,
    /// What others leave.
    Gaps,
}

/// What a tenant is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entitlement {
    /// The part of the GPU's time while all want it that are not idle (of one that is idle: all), parts per million; 0 for best effort.
    pub ppm: u32,
    /// Its weight among those it competes with; at least 1.
    pub weight_ppm: u32,
    /// Why it is that.
    pub rule: Rule,
}

/// What guarantees add up to, parts per million.
pub fn promised_ppm(requests: impl IntoIterator<Item = Request>) -> u64 {
    requests.into_iter().map(|request| request.promised()).sum()
}

/// Whether the guarantees among `requests` can all be kept.
pub fn fits(requests: impl IntoIterator<Item = Request>) -> bool {
    promised_ppm(requests) <= WHOLE
}

/// The entitlement of each tenant. Those of who is not idle add up to [`PPM`] at most.
pub fn entitlements(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, Entitlement> {
    let mut owed = while_all_want(requests);
    if requests.values().any(|request| request.is_idle) {
        owed.extend(while_all_want(&awake(requests)));
    }
    owed
}

/// Those that are not idle.
fn awake(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, Request> {
    let awake = requests.iter().filter(|(_, request)| !request.is_idle);
    awake.map(|(tenant, request)| (*tenant, *request)).collect()
}

/// What each is owed beside all the others. It adds up to [`PPM`] at most.
fn while_all_want(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, Entitlement> {
    let promised = promised_ppm(requests.values().copied());
    let room = WHOLE.saturating_sub(promised);
    let fair = || requests.values().filter(|request| request.class != Class::BestEffort);
    let asked_sum: u64 =
        fair().filter(|request| request.class == Class::Fair).filter_map(Request::wanted).sum();
    let unasked = fair().filter(|request| request.asked_ppm.is_none()).count() as u64;

    let floor = (unasked * UNASKED_FLOOR_PPM).min(UNASKED_LIMIT_PPM).min(room);
    let for_unasked = room.saturating_sub(asked_sum).max(floor);
    let for_asked = if unasked == 0 { room } else { room - for_unasked };

    // In the order of the requests that they belong to.
    let mut rest = parts(requests, for_unasked, |request| {
        request.class != Class::BestEffort && request.asked_ppm.is_none()
    });
    let mut gaps = parts(requests, WHOLE, |request| request.class == Class::BestEffort);
    let owed = |(tenant, request): (&TenantId, &Request)| {
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
        (*tenant, Entitlement { ppm, weight_ppm, rule })
    };
    requests.iter().map(owed).collect()
}

/// Parts of `total` for those tenants that `belongs` picks, in their order, by priority and up to their caps.
fn parts(
    requests: &BTreeMap<TenantId, Request>,
    total: u64,
    belongs: impl Fn(&Request) -> bool,
) -> impl Iterator<Item = u64> {
    let vessel = |request: &Request| Vessel {
        weight: u64::from(request.priority_ppm.max(MIN_VALUE_PPM)),
        cap: if request.class == Class::BestEffort { WHOLE } else { u64::from(request.cap_ppm) },
    };
    let picked = requests.values().filter(|request| belongs(request));
    fill(total, &picked.map(vessel).collect::<Vec<_>>()).into_iter()
}

#[cfg(test)]
mod tests;
