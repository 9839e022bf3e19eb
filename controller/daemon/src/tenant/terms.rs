//! The terms of a tenant: the wishes of its job, and the settings of an administrator. The grant
//! follows from both under the user's caps.

use super::Allotment;
use crate::state::SavedTenant;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::wish::Key;
use deepres_model::authority::{Granted, Part, Rule, Want, Wants, Wish, crowded, grant, refuse};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::{CapOf, Caps};
use deepres_policy::class::Class;
use deepres_policy::priority::Priority;

/// The terms of one tenant: the wishes of its job, the settings of an administrator, and its user's
/// caps.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The caps of the tenant's user, and the rule from which the caps come.
    caps: (Caps, CapOf),
    /// The tenant's part of the user's caps.
    part: Part,
    /// The wishes of the tenant's job.
    asked: Wish,
    /// The defaults for wishes that the job does not state: of the allotment, else of the
    /// configuration.
    defaults: Wish,
    /// The part of the GPUs that the cluster gave to the job. The caps then come from the
    /// allotment, and belong to the tenant alone.
    allotment: Option<Allotment>,
    /// When the daemon first got the job's wishes, ns of `CLOCK_MONOTONIC`. Deadlines of the job
    /// count from this time.
    asked_ns: u64,
    /// The settings of an administrator.
    set: Wish,
    /// When an administrator last set a deadline, ns of `CLOCK_MONOTONIC`. The deadline counts from
    /// this time.
    set_ns: u64,
    /// Whether an administrator paused the tenant.
    is_paused: bool,
    /// Whether the tenant's guarantee fits beside the guarantees of others. Also true for a tenant
    /// without a guarantee.
    has_room: bool,
}

impl Terms {
    /// Returns the terms of a job that asks now, with the whole caps of its user.
    pub fn new(asked: Wish, defaults: Wish, caps: (Caps, CapOf)) -> Self {
        Self {
            part: Part::whole(&caps.0),
            caps,
            asked,
            defaults,
            allotment: None,
            asked_ns: monotonic_ns(),
            set: Wish::default(),
            set_ns: 0,
            is_paused: false,
            has_room: true,
        }
    }

    /// Returns the terms that the previous daemon saved, without the allotment.
    pub fn restored(saved: &SavedTenant, defaults: Wish, caps: (Caps, CapOf)) -> Self {
        Self {
            asked_ns: saved.asked_ns,
            set: saved.set,
            set_ns: saved.set_ns,
            is_paused: saved.paused,
            has_room: !saved.lacks_room,
            ..Self::new(saved.asked, defaults, caps)
        }
    }

    /// Bounds the job by the part of the GPUs that the cluster gave to it.
    pub fn allot(&mut self, allotment: Allotment) {
        self.caps = allotment.caps(&self.caps.0);
        self.part = Part::whole(&self.caps.0);
        self.defaults = allotment.defaults().or(self.defaults);
        self.allotment = Some(allotment);
    }

    /// Returns the part of the GPUs that the cluster gave to the job, if the daemon knows it.
    pub fn allotment(&self) -> Option<&Allotment> {
        self.allotment.as_ref()
    }

    /// Replaces the configuration's defaults, and the caps of the tenant's user. Until the daemon
    /// divides the caps among the user's tenants, the tenant may have the whole caps. The part of
    /// the GPUs that the cluster gave to the job still bounds the job.
    pub fn set_rules(&mut self, defaults: Wish, caps: (Caps, CapOf)) {
        self.part = Part::whole(&caps.0);
        (self.defaults, self.caps) = (defaults, caps);
        if let Some(allotment) = self.allotment.take() {
            self.allot(allotment);
        }
    }

    /// Returns the terms in the form in which the daemon saves them.
    pub fn saved(&self) -> SavedTenant {
        SavedTenant {
            asked: self.asked,
            asked_ns: self.asked_ns,
            set: self.set,
            paused: self.is_paused,
            set_ns: self.set_ns,
            lacks_room: !self.has_room,
            allotment: self.allotment.clone(),
            ..SavedTenant::default()
        }
    }

    /// Returns the wishes of the job.
    pub fn asked(&self) -> Wish {
        self.asked
    }

    /// Returns the wishes of the job. A default replaces each wish that the job does not state.
    pub fn wish(&self) -> Wish {
        self.asked.or(self.defaults)
    }

    /// Returns the wishes that an administrator set, else the wishes that the job stated. The
    /// result contains no defaults.
    pub fn stated(&self) -> Wish {
        self.set.or(self.asked)
    }

    /// Returns the wishes that an administrator set, else the wishes of `job`.
    pub fn settings_over(&self, job: &Self) -> Wish {
        self.set.or(job.wish())
    }

    /// Returns the caps of the tenant's user.
    pub fn caps(&self) -> &Caps {
        &self.caps.0
    }

    /// Returns whether the tenant shares caps on share or memory with its user's other tenants.
    pub fn share_caps(&self) -> bool {
        self.caps.0.is_any() && self.allotment.is_none()
    }

    /// Returns the tenant's part of the user's caps.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Changes the tenant's part of the user's caps. Returns whether the part has changed.
    pub fn set_part(&mut self, part: Part) -> bool {
        std::mem::replace(&mut self.part, part) != part
    }

    /// Records whether the tenant's guarantee fits beside the guarantees of others.
    pub fn set_has_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// Returns when the daemon first got the job's wishes, ns of `CLOCK_MONOTONIC`.
    pub fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// Takes over an administrator's settings, a pause included, from earlier terms.
    pub fn keep_settings_of(&mut self, before: &Self) {
        (self.set, self.set_ns, self.is_paused) = (before.set, before.set_ns, before.is_paused);
    }

    /// Adds wishes that the job has not stated so far. Returns whether the wishes have changed.
    pub fn ask_more(&mut self, asked: Wish) -> bool {
        let merged = self.asked.or(asked);
        std::mem::replace(&mut self.asked, merged) != merged
    }

    /// Returns the reason for which a job that has not started cannot have these terms. `None`: the
    /// job can have them, unless its user's other tenants have too much ([`Self::crowding`]).
    pub fn refusal(&self) -> Option<String> {
        refuse(&self.asked, self.caps, self.has_room)
    }

    /// Returns the reason for which a job that has not started cannot have these terms now. The
    /// reason is that its user's other tenants have too much of the caps. Returns `None` if these
    /// tenants leave enough.
    pub fn crowding(&self) -> Option<String> {
        crowded(&self.asked, self.caps, &self.part)
    }

    /// Returns the administrator's settings after the settings `unset` have ended and `wish` is
    /// set.
    pub fn settings_with(&self, wish: Wish, unset: &[Key]) -> Wish {
        let mut left = self.set;
        unset.iter().for_each(|key| left.remove(*key));
        wish.or(left)
    }

    /// Changes the administrator's settings. With `has_deadline`, the deadline of the settings
    /// counts from now.
    pub fn set(&mut self, settings: Wish, has_deadline: bool) {
        self.set = settings;
        if has_deadline {
            self.set_ns = monotonic_ns();
        }
    }

    /// Pauses the tenant, or ends the pause.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns whether an administrator paused the tenant.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the tenant's grant: the wishes and settings, as far as the caps allow.
    pub fn granted(&self) -> Granted {
        self.granted_with(&self.set)
    }

    /// Returns the grant that the tenant would have with these settings of an administrator.
    pub fn granted_with(&self, settings: &Wish) -> Granted {
        grant(&self.wish(), settings, self.caps, &self.part, self.has_room).told_by(&self.asked)
    }

    /// Returns the share that the daemon guarantees the tenant, parts per million; 0 without a
    /// guarantee.
    pub fn promised_ppm(&self) -> u32 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.share_ppm.value.unwrap_or(0) } else { 0 }
    }

    /// Returns the memory that the daemon guarantees the tenant on each GPU with room for it,
    /// bytes; 0 without a guarantee.
    pub fn promised_bytes(&self) -> u64 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.memory_bytes.value.unwrap_or(0) } else { 0 }
    }

    /// Returns the granted memory limit on each GPU, bytes, or [`NO_LIMIT`].
    pub fn limit_bytes(&self) -> u64 {
        self.granted().memory_bytes.value.unwrap_or(NO_LIMIT)
    }

    /// Returns whether the tenant shares a cap on memory with its user's other tenants. If an
    /// administrator set the tenant's limit, the cap does not bind the tenant.
    pub fn is_bound(&self) -> bool {
        self.share_caps() && self.caps.0.memory_bytes != NO_LIMIT && self.set.memory_bytes.is_none()
    }

    /// Returns the tenant's wants for parts of its user's caps, while the tenant holds `held_bytes`
    /// of memory.
    pub fn wants(&self, held_bytes: u64) -> Wants {
        let want = |set: bool, asked: Option<u64>| match (set || self.allotment.is_some(), asked) {
            (true, _) => Want::Above,
            (false, Some(asked)) => Want::Asked(asked),
            (false, None) => Want::Rest,
        };
        let wish = self.wish();
        Wants {
            share: want(self.set.share_ppm.is_some(), wish.share_ppm.map(u64::from)),
            memory: want(self.set.memory_bytes.is_some(), wish.memory_bytes),
            held_bytes,
        }
    }

    /// Returns the declarations from which the policy computes the tenant's priority value.
    pub fn priority(&self, granted: &Granted) -> Priority {
        let said_ns =
            if granted.deadline_ns.rule == Rule::Administrator { self.set_ns } else { self.asked_ns };
        Priority {
            criticality: granted.criticality.value,
            deadline_ns: granted.deadline_ns.value.map(|deadline_ns| said_ns.saturating_add(deadline_ns)),
            size_ns: granted.size_ns.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a job with 30 shards of GPU 1, which has 1,000 bytes.
    fn allotment() -> Allotment {
        let (job, gpus) = (Some(7), Some(vec![1]));
        let (share_ppm, memory_bytes) = (300_000, 300);
        Allotment { job, share_ppm, memory_bytes, elsewhere_bytes: 10, class: Class::Fair, gpus }
    }

    fn granted(asked: Wish) -> (Option<u32>, Option<u64>, Class) {
        let class = Class::BestEffort;
        let of_user = Caps { share_ppm: 100_000, memory_bytes: 100, class, ..Caps::NONE };
        let mut terms = Terms::new(asked, Wish::default(), (of_user, CapOf::Everyone));
        terms.allot(allotment());
        let granted = terms.granted();
        (granted.share_ppm.value, granted.memory_bytes.value, granted.class.value)
    }

    #[test]
    fn a_job_has_its_allotment_in_the_place_of_its_users_caps_and_no_wish_raises_it() {
        assert_eq!(granted(Wish::default()), (Some(300_000), Some(300), Class::Fair));
        let greedy = Wish {
            share_ppm: Some(990_000),
            memory_bytes: Some(5_000),
            class: Some(Class::Guaranteed),
            ..Wish::default()
        };
        assert_eq!(granted(greedy), (Some(300_000), Some(300), Class::Fair));
        let modest = Wish { share_ppm: Some(200_000), memory_bytes: Some(50), ..Wish::default() };
        assert_eq!(granted(modest), (Some(200_000), Some(50), Class::Fair));
    }

    #[test]
    fn an_allotment_takes_nothing_of_the_users_caps_and_survives_a_restart() {
        let of_user = (Caps { share_ppm: 100_000, memory_bytes: 100, ..Caps::NONE }, CapOf::Everyone);
        let mut terms = Terms::new(Wish::default(), Wish::default(), of_user);
        assert!(terms.share_caps() && terms.is_bound());
        terms.allot(allotment());
        assert!(!terms.share_caps() && !terms.is_bound());
        let wants = terms.wants(7);
        assert_eq!((wants.share, wants.memory), (Want::Above, Want::Above));
        assert_eq!(terms.saved().allotment, Some(allotment()));
    }
}
