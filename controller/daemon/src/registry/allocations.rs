//! The allocations of which a node's agent has told the daemon, and the processes that have them.
//!
//! The agent alone divides the GPUs. An init container and the containers after it can have the
//! same part of a GPU, so the daemon does not add up allocations.
//!
//! A process shows its allocation by a token. From then on, all processes of its container have the
//! allocation, whatever names and tokens they give.

use super::admission::claim;
use super::{Guest, Refused, Tenants};
use crate::gpus::Gpus;
use crate::identity::{Facts, Identity, Key, ROOT, cgroup::Kind};
use crate::tenant::Allotment;
use deepres_abi::wire::{Hello, RefusalKind};
use deepres_model::allocation::{Allocation, TOKEN_PREFIX, Token};
use deepres_model::identity::Found;
use deepres_model::text::harmless;
use deepres_policy::class::Class;
use std::collections::BTreeMap;

/// The text that the key of an allocation's tenant has in place of a cgroup path. No cgroup has
/// this path.
const PLACE: &str = "allocation";

/// The daemon's record of allocations, by token.
#[derive(Debug, Default)]
pub struct Allocations(BTreeMap<Token, Allocation>);

/// Returns the key of the tenant that has the allocation of this token.
fn key(token: &Token) -> Key {
    Key::Name { user: ROOT, name: token.as_str().to_owned(), place: Some(PLACE.to_owned()) }
}

/// Returns the token in the key of a tenant.
fn token_of(key: &Key) -> Option<Token> {
    match key {
        Key::Name { user: ROOT, name, place: Some(place) } if place == PLACE => {
            Token::try_from(name.clone()).ok()
        }
        _ => None,
    }
}

impl Allocations {
    /// Returns the allocation of the tenant with this key.
    pub fn of_key(&self, key: &Key) -> Option<&Allocation> {
        self.0.get(&token_of(key)?)
    }

    /// Returns the part of the GPUs that the tenant with this key has by its allocation.
    pub fn allotment_of(&self, key: &Key, gpus: &Gpus) -> Option<Allotment> {
        let allocation = self.of_key(key)?;
        Some(Allotment {
            job: None,
            share_ppm: allocation.share_ppm,
            memory_bytes: allocation.memory_bytes,
            elsewhere_bytes: 0,
            class: Class::Guaranteed,
            gpus: Some(allocation.gpus.iter().filter_map(|gpu| gpus.number_named(gpu)).collect()),
        })
    }

    /// Returns all allocations.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.0.values()
    }

    /// Replaces all allocations by those that the previous daemon saved.
    pub fn restore(&mut self, saved: &[Allocation]) {
        self.0 = saved.iter().map(|allocation| (allocation.token.clone(), allocation.clone())).collect();
    }

    /// Records an allocation, or replaces the allocation of the same token.
    ///
    /// # Errors
    ///
    /// Returns the message for the agent if the allocation is impossible.
    pub fn record(&mut self, allocation: Allocation, gpus: &Gpus) -> Result<(), String> {
        if let Some(fault) = allocation.fault() {
            return Err(fault);
        }
        for gpu in &allocation.gpus {
            if gpus.number_named(gpu).is_none() {
                return Err(format!("the daemon does not manage the GPU {}", harmless(gpu)));
            }
        }
        tracing::info!(gpus = ?allocation.gpus, share_ppm = allocation.share_ppm, holder = ?allocation.holder, "an allocation is on record");
        self.0.insert(allocation.token.clone(), allocation);
        Ok(())
    }

    /// Removes an allocation from the record. Does nothing if there is no such allocation.
    pub fn remove(&mut self, token: &Token) {
        if let Some(allocation) = self.0.remove(token) {
            tracing::info!(gpus = ?allocation.gpus, holder = ?allocation.holder, "an allocation ended");
        }
    }

    /// Returns the identity of a process that has an allocation: by the allocation of its
    /// container, or by its token. A container has no more than one allocation, so a second token,
    /// for example of an init container, gains nothing.
    pub fn identify(&self, claim: &str, facts: &Facts, tenants: &Tenants) -> Option<Identity> {
        let by_token = || {
            let allocation = self.0.get(&Token::try_from(claim.to_owned()).ok()?)?;
            let place = || facts.place.as_ref().map(|place| place.name());
            let name = allocation.holder.as_ref().map(|holder| harmless(&holder.to_string())).or_else(place);
            Some((key(&allocation.token), name.unwrap_or_else(|| PLACE.to_owned())))
        };
        let by_container = || {
            let (name, tenant) = tenants.iter().find(|(_, tenant)| {
                tenant.owner.has_container_of(facts) && self.of_key(&tenant.owner.key).is_some()
            })?;
            Some((tenant.owner.key.clone(), name.to_owned()))
        };
        let (key, name) = by_container().or_else(by_token)?;
        Some(Identity { key, name, found: Found::Allocation })
    }

    /// Refuses a process that must have an allocation and has none, or that sees GPUs beyond its
    /// allocation. The launches of a refused process fail, because its own variables can claim any
    /// share.
    pub fn check(
        &self,
        guest: &Guest,
        hello: &Hello,
        key: &Key,
        gpus: &Gpus,
        pods_need_token: bool,
    ) -> Result<(), Refused> {
        let refused = |kind, reason: &str| Err(Refused::new(kind, reason).shut());
        if let Some(allocation) = self.of_key(key) {
            let named = |gpu: &String| gpus.number_named(gpu);
            let own: Vec<usize> = allocation.gpus.iter().filter_map(named).collect();
            let mut seen = hello.gpus().iter().filter_map(|uuid| gpus.number_of(uuid));
            return match seen.find(|gpu| !own.contains(gpu)) {
                Some(gpu) => refused(
                    RefusalKind::Request,
                    &format!(
                        "the process sees GPU {gpu}, which its allocation does not have; leave CUDA_VISIBLE_DEVICES as the device plugin set it"
                    ),
                ),
                None => Ok(()),
            };
        }
        if token_of(key).is_some() || claim(hello).starts_with(TOKEN_PREFIX) {
            // The agent tells a new daemon its allocations within a second.
            return refused(
                RefusalKind::Stopping,
                "the daemon does not know the allocation of this token; the device plugin may have ended it",
            );
        }
        let is_pod = guest.facts.place.as_ref().is_some_and(|place| matches!(place.kind, Kind::Pod { .. }));
        if pods_need_token && is_pod {
            return refused(
                RefusalKind::Request,
                "a process in a pod needs the token of its allocation (pods_need_token); ask for deepres.dev/share, and leave DEEPRES_TENANT as the device plugin set it",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::cgroup;
    use crate::memory::TenantMemory;
    use crate::tenant::{Owner, Tenant, Terms};
    use deepres_model::authority::Wish;
    use deepres_model::config::{CapOf, Caps};

    #[test]
    fn a_token_shows_which_allocation_a_process_has_while_the_allocation_is_on_record() {
        let token = Token::of([7; 16]);
        let allocation = Allocation {
            token: token.clone(),
            share_ppm: 300_000,
            memory_bytes: 1 << 30,
            gpus: vec!["GPU-1".to_owned()],
            holder: None,
        };
        let (gpus, tenants) = (Gpus::default(), Tenants::default());
        let facts = Facts {
            pid: 30,
            process: None,
            place: None,
            owner: 1_000,
            namespace: None,
            namespaces: Vec::new(),
        };
        let mut allocations = Allocations::default();
        let why = allocations.record(allocation.clone(), &gpus).unwrap_err();
        assert!(why.contains("does not manage the GPU GPU-1"), "{why}");
        assert_eq!(allocations.identify(token.as_str(), &facts, &tenants), None);

        allocations.restore(&[allocation]);
        assert_eq!(allocations.identify("train", &facts, &tenants), None);
        let identity = allocations.identify(token.as_str(), &facts, &tenants).unwrap();
        let allotment = allocations.allotment_of(&identity.key, &gpus).unwrap();
        assert_eq!((identity.name.as_str(), allotment.share_ppm), (PLACE, 300_000));
        allocations.remove(&token);
        assert!(allocations.of_key(&identity.key).is_none());
    }

    #[test]
    fn a_container_has_its_allocation_by_its_whole_path_and_not_by_its_id_alone() {
        let token = Token::of([7; 16]);
        let allocation = Allocation {
            token: token.clone(),
            share_ppm: 300_000,
            memory_bytes: 1 << 30,
            gpus: Vec::new(),
            holder: None,
        };
        let mut allocations = Allocations::default();
        allocations.restore(&[allocation]);
        let facts = |path: String| Facts {
            pid: 30,
            process: None,
            place: cgroup::place(&format!("0::{path}")),
            owner: 1_001,
            namespace: None,
            namespaces: Vec::new(),
        };
        let scope = |digit: &str| format!("cri-containerd-{}.scope", digit.repeat(64));
        let in_pod = |digit: &str| facts(format!("/kubepods/pod{}/{}", "0".repeat(32), scope(digit)));
        let real = in_pod("a");
        // `systemd-run --user --scope --unit=cri-containerd-….scope` makes such a cgroup.
        let forged = facts(format!("/user.slice/user-1001.slice/user@1001.service/app.slice/{}", scope("a")));
        assert_eq!((forged.container(), forged.path() == real.path()), (real.container(), false));
        // Returns whether a process with these facts has the allocation of the tenant at `place`.
        let has_it = |facts: &Facts, place: Option<&str>| {
            let owner = Owner {
                key: key(&token),
                found: Found::Allocation,
                container: real.container().cloned(),
                place: place.map(str::to_owned),
                user: 1_000,
                groups: Vec::new(),
            };
            let terms = Terms::new(Wish::default(), Wish::default(), (Caps::NONE, CapOf::Everyone));
            let mut tenants = Tenants::default();
            tenants.add("main".to_owned(), Tenant::new(1, owner, terms, TenantMemory::new().unwrap()));
            let identity = allocations.identify("train", facts, &tenants);
            identity.is_some_and(|identity| identity.key == key(&token))
        };
        assert!(has_it(&real, real.path()));
        assert!(!has_it(&forged, real.path()), "another user made a cgroup with the container's id");
        assert!(!has_it(&in_pod("b"), real.path()), "another container of the pod");
        assert!(!has_it(&facts("/".to_owned()), real.path()) && !has_it(&real, None));
    }
}
